"""Routes of the API. Each has its row in tests/isolation/matrix.py."""

from django.urls import path

from controlplane.api import (
    deployments,
    document,  # noqa: F401 - describes our keys to the OpenAPI document
    internal,
    keys,
    me,
    platform,
    registry,
    uploads,
    usage,
)

app_name = "api"
urlpatterns = [
    path("internal/catalog", internal.get_catalog, name="internal-catalog"),
    path("internal/usage", internal.post_usage, name="internal-usage"),
    path("internal/replicas", internal.post_replicas, name="internal-replicas"),
    path("api/v1/me", me.MeView.as_view(), name="me"),
    path("api/v1/keys", keys.KeysView.as_view(), name="keys"),
    path("api/v1/keys/<str:key_id>", keys.KeyView.as_view(), name="key"),
    path("api/v1/keys/<str:key_id>/revoke", keys.RevokeKeyView.as_view(), name="key-revoke"),
    path("api/v1/keys/<str:key_id>/roll", keys.RollKeyView.as_view(), name="key-roll"),
    path("api/v1/keys/<str:key_id>/limits", keys.KeyLimitsView.as_view(), name="key-limits"),
    path("api/v1/models", registry.ModelsView.as_view(), name="models"),
    path("api/v1/models/<str:model_id>", registry.ModelView.as_view(), name="model"),
    path("api/v1/models/<str:model_id>/versions", registry.ModelVersionsView.as_view(), name="model-versions"),
    path("api/v1/models/<str:model_id>/aliases", registry.AliasesView.as_view(), name="aliases"),
    path("api/v1/models/<str:model_id>/aliases/<str:alias>", registry.AliasView.as_view(), name="alias"),
    path("api/v1/models/<str:model>/uploads", uploads.UploadsView.as_view(), name="uploads"),
    path("api/v1/uploads/<str:upload_id>", uploads.UploadView.as_view(), name="upload"),
    path("api/v1/uploads/<str:upload_id>/parts", uploads.UploadPartsView.as_view(), name="upload-parts"),
    path(
        "api/v1/uploads/<str:upload_id>/files/<str:name>/parts/<int:number>",
        uploads.UploadPartView.as_view(),
        name="upload-part",
    ),
    path("api/v1/uploads/<str:upload_id>/complete", uploads.CompleteUploadView.as_view(), name="upload-complete"),
    path("api/v1/storage", uploads.StorageView.as_view(), name="storage"),
    path("api/v1/versions/<str:version_id>", registry.VersionView.as_view(), name="version"),
    path("api/v1/versions/<str:version_id>/archive", registry.ArchiveVersionView.as_view(), name="version-archive"),
    path("api/v1/versions/<str:version_id>/diff", registry.VersionDifferenceView.as_view(), name="version-diff"),
    path("api/v1/deployments", deployments.DeploymentsView.as_view(), name="deployments"),
    path("api/v1/deployments/<str:deployment_id>", deployments.DeploymentView.as_view(), name="deployment"),
    path("api/v1/deployments/<str:deployment_id>/pause", deployments.PauseDeploymentView.as_view(), name="pause"),
    path("api/v1/deployments/<str:deployment_id>/resume", deployments.ResumeDeploymentView.as_view(), name="resume"),
    path("api/v1/deployments/<str:deployment_id>/replicas", deployments.ReplicasView.as_view(), name="replicas"),
    path("api/v1/deployments/<str:deployment_id>/events", deployments.EventsView.as_view(), name="events"),
    path("api/v1/deployments/<str:deployment_id>/costs", deployments.RestartCostsView.as_view(), name="costs"),
    path("api/v1/deployments/<str:deployment_id>/shares", deployments.SharesView.as_view(), name="shares"),
    path("api/v1/usage", usage.UsageView.as_view(), name="usage"),
    path("api/v1/usage/month", usage.MonthUsageView.as_view(), name="usage-month"),
    path("api/v1/requests", usage.RequestsView.as_view(), name="requests"),
    path("api/v1/requests/<str:request_id>", usage.RequestView.as_view(), name="request"),
    path("api/v1/platform/tenants", platform.TenantsView.as_view(), name="platform-tenants"),
    path("api/v1/platform/tenants/<str:slug>/limits", platform.TenantLimitsView.as_view(), name="platform-limits"),
    path("api/v1/platform/tenants/<str:slug>/storage", uploads.TenantStorageView.as_view(), name="platform-storage"),
    path("api/v1/platform/tenants/<str:slug>/serving", platform.TenantServingView.as_view(), name="platform-serving"),
    path("api/v1/platform/fleet", platform.FleetView.as_view(), name="platform-fleet"),
    path(
        "api/v1/platform/deployments/<str:deployment_id>/grants/<str:slug>",
        platform.GrantView.as_view(),
        name="platform-grant",
    ),
]
