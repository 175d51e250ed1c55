"""Every route of the control plane. For each, a row in tests/isolation/matrix.py says who may reach it."""

from django.urls import include, path

from controlplane import health

handler404 = "controlplane.middleware.not_found"
handler500 = "controlplane.middleware.server_error"
urlpatterns = [
    path("healthz", health.live, name="health"),
    path("account/", include("allauth.urls")),
    path("", include("controlplane.api.urls")),
    path("", include("console.urls")),
]
