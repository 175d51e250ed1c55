"""The Django project and its apps: the control plane, whose only truth is PostgreSQL."""
