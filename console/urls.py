"""The console's routes: ``/t/<tenant>/...`` for members, ``/platform/...`` for those who run the platform."""

from django.urls import path

from console.views import deployments, entry, home, keys, platform, playground, usage

app_name = "console"

urlpatterns = [
    path("", entry.enter, name="enter"),
    path("theme", entry.set_theme, name="theme"),
    path("t/<slug:tenant>/", home.home, name="home"),
    path("t/<slug:tenant>/playground", playground.playground, name="playground"),
    path("t/<slug:tenant>/playground/stream", playground.stream, name="playground-stream"),
    path("t/<slug:tenant>/deployments", deployments.index, name="deployments"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>", deployments.detail, name="deployment"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>/pause", deployments.pause, name="deployment-pause"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>/resume", deployments.resume, name="deployment-resume"),
    path("t/<slug:tenant>/keys", keys.index, name="keys"),
    path("t/<slug:tenant>/keys/new", keys.create, name="key-new"),
    path("t/<slug:tenant>/keys/<slug:key_id>/roll", keys.roll, name="key-roll"),
    path("t/<slug:tenant>/keys/<slug:key_id>/revoke", keys.revoke, name="key-revoke"),
    path("t/<slug:tenant>/usage", usage.usage, name="usage"),
    path("platform/fleet", platform.fleet, name="fleet"),
    path("platform/tenants", platform.tenants, name="tenants"),
    path("platform/tenants/<slug:slug>/limits", platform.limits, name="tenant-limits"),
    path("platform/tenants/<slug:slug>/suspend", platform.suspend, name="tenant-suspend"),
    path("platform/tenants/<slug:slug>/resume", platform.resume, name="tenant-resume"),
]
