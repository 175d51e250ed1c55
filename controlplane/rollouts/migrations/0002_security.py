from django.db import migrations

from tenants.rls import TENANT, AppendOnly, EnableRowLevelSecurity, RequireSameTenant

EVERY_TENANT = f"nullif(current_setting('{TENANT}', true), '') IS NOT NULL"
"""A freeze holds every tenant's rollouts, so every tenant may read of it."""


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0001_initial"),
        ("deployments", "0004_arm_hold"),
        ("registry", "0004_version_life_security"),
    ]

    operations = [
        EnableRowLevelSecurity("rollouts_rollout"),
        EnableRowLevelSecurity("rollouts_rolloutevent"),
        EnableRowLevelSecurity("rollouts_rolloutfreeze", None, also_readable_where=EVERY_TENANT),
        RequireSameTenant("rollouts_rollout", "deployment_id", "deployments_deployment"),
        RequireSameTenant("rollouts_rollout", "stable_version_id", "registry_modelversion"),
        RequireSameTenant("rollouts_rollout", "candidate_version_id", "registry_modelversion"),
        RequireSameTenant("rollouts_rolloutevent", "rollout_id", "rollouts_rollout"),
        AppendOnly("rollouts_rolloutevent"),
    ]
