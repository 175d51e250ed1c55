"""The whole product on one machine: embedded services, supervisor, bootstrap, the bundled model.

``python -m stack up`` is what ``make up`` runs. Production replaces this package by real services and supervisors.
"""
