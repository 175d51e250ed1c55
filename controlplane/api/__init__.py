"""HTTP for programs: ``/api/v1`` for tenants and the platform, ``/internal`` for the product's own processes.

Views translate: input to a service's or selector's arguments, its result to JSON. They hold no rules.
"""
