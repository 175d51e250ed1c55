"""Every route of the control plane. A route is reachable only when its row in tests/isolation/matrix.py says by whom."""

from django.urls import include, path

from controlplane import health

urlpatterns = [
    path("healthz", health.live, name="health"),
    path("account/", include("allauth.urls")),
]
