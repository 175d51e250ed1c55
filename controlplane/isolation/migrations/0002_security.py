from django.db import migrations

from tenants.rls import TENANT, EnableRowLevelSecurity, is_setting

NO_TENANT = None
"""The rows belong to the platform alone."""


class Migration(migrations.Migration):
    dependencies = [("isolation", "0001_initial"), ("deployments", "0002_security"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("isolation_tenantbucket"),
        EnableRowLevelSecurity(
            "isolation_proberow",
            also_readable_where="deployment_id IN"
            f" (SELECT deployment_id FROM deployments_grant WHERE {is_setting('grantee_id', TENANT)})",
        ),
        EnableRowLevelSecurity("isolation_replicaword", NO_TENANT),
        EnableRowLevelSecurity("isolation_cachebucket", NO_TENANT),
    ]
