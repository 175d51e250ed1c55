"""The console's routes: ``/t/<tenant>/...`` for members, ``/platform/...`` for those who run the platform."""

from django.urls import path

from console.views import (
    account,
    audit,
    budgets,
    deployment_settings,
    deployments,
    entry,
    home,
    invitations,
    jobs,
    keys,
    members,
    platform,
    playground,
    prices,
    start,
    usage,
    warm_pool,
)

app_name = "console"

urlpatterns = [
    path("", entry.enter, name="enter"),
    path("theme", entry.set_theme, name="theme"),
    path("account/you", account.account, name="account"),
    path("invitations/<slug:token>", invitations.invitation, name="invitation"),
    path("t/<slug:tenant>/", home.home, name="home"),
    path("t/<slug:tenant>/start", start.start, name="start"),
    path("t/<slug:tenant>/playground", playground.playground, name="playground"),
    path("t/<slug:tenant>/playground/stream", playground.stream, name="playground-stream"),
    path("t/<slug:tenant>/deployments", deployments.index, name="deployments"),
    path("t/<slug:tenant>/deployments/new", deployment_settings.create, name="deployment-new"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>", deployments.detail, name="deployment"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>/pause", deployments.pause, name="deployment-pause"),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>/resume", deployments.resume, name="deployment-resume"),
    path(
        "t/<slug:tenant>/deployments/<slug:deployment_id>/settings",
        deployment_settings.settings,
        name="deployment-settings",
    ),
    path("t/<slug:tenant>/deployments/<slug:deployment_id>/delete", deployments.delete, name="deployment-delete"),
    path("t/<slug:tenant>/keys", keys.index, name="keys"),
    path("t/<slug:tenant>/keys/new", keys.create, name="key-new"),
    path("t/<slug:tenant>/keys/<slug:key_id>/roll", keys.roll, name="key-roll"),
    path("t/<slug:tenant>/keys/<slug:key_id>/revoke", keys.revoke, name="key-revoke"),
    path("t/<slug:tenant>/usage", usage.usage, name="usage"),
    path("t/<slug:tenant>/members", members.index, name="members"),
    path("t/<slug:tenant>/members/invite", members.invite, name="member-invite"),
    path("t/<slug:tenant>/members/leave", members.leave, name="member-leave"),
    path("t/<slug:tenant>/members/<slug:user_id>/role", members.role, name="member-role"),
    path("t/<slug:tenant>/members/<slug:user_id>/remove", members.remove, name="member-remove"),
    path(
        "t/<slug:tenant>/invitations/<slug:invitation_id>/revoke", members.revoke_invitation, name="invitation-revoke"
    ),
    path("t/<slug:tenant>/audit", audit.audit, name="audit"),
    path("platform/fleet", platform.fleet, name="fleet"),
    path("platform/budgets", budgets.index, name="budgets"),
    path("platform/budgets/<slug:deployment_id>/share", budgets.share, name="budget-share"),
    path("platform/budgets/<slug:deployment_id>/unshare", budgets.unshare, name="budget-unshare"),
    path("platform/warm-pool", warm_pool.warm_pool, name="warm-pool"),
    path("platform/prices", prices.prices, name="prices"),
    path("platform/jobs", jobs.index, name="jobs"),
    path("platform/jobs/<slug:job_id>/retry", jobs.retry, name="job-retry"),
    path("platform/audit", audit.platform_audit, name="platform-audit"),
    path("platform/tenants", platform.tenants, name="tenants"),
    path("platform/tenants/<slug:slug>/limits", platform.limits, name="tenant-limits"),
    path("platform/tenants/<slug:slug>/suspend", platform.suspend, name="tenant-suspend"),
    path("platform/tenants/<slug:slug>/resume", platform.resume, name="tenant-resume"),
]
