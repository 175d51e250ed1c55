"""Faults that a service found, shown at the fields of the form they came from."""

from django import forms

from tenants.errors import Invalid


def show_faults(form: forms.Form, error: Invalid) -> None:
    """Attach each fault to its field; those of no field on the form stand above it."""
    placed = False
    for name, reason in error.fields.items():
        if name in form.fields:
            form.add_error(name, reason)
            placed = True
    if not placed:
        form.add_error(None, error.message)
