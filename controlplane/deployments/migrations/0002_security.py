from django.db import migrations

from tenants.rls import TENANT, AppendOnly, EnableRowLevelSecurity, RequireSameTenant, is_setting

NO_TENANT = "NULL"
"""The rows belong to the platform alone."""

GRANTED_TO_ME = is_setting("grantee_id", TENANT)

WEIGHTS_SUM_TO_100 = """
CREATE FUNCTION pagoda_arms_sum_to_100() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed text := CASE WHEN TG_OP = 'DELETE' THEN OLD.deployment_id ELSE NEW.deployment_id END;
    total bigint;
BEGIN
    SELECT sum(weight) INTO total FROM deployments_deploymentarm WHERE deployment_id = changed;
    IF total <> 100 THEN
        RAISE EXCEPTION 'the weights of the arms of % sum to %, not to 100', changed, total
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("deployments", "0001_initial"), ("registry", "0002_security"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("deployments_grant", also_readable_where=GRANTED_TO_ME),
        EnableRowLevelSecurity(
            "deployments_deployment",
            also_readable_where=f"id IN (SELECT deployment_id FROM deployments_grant WHERE {GRANTED_TO_ME})",
        ),
        EnableRowLevelSecurity("deployments_deploymentarm"),
        EnableRowLevelSecurity("deployments_replicarow"),
        EnableRowLevelSecurity("deployments_replicaevent"),
        EnableRowLevelSecurity("deployments_fleetnode", NO_TENANT),
        EnableRowLevelSecurity("deployments_cataloghead", NO_TENANT),
        RequireSameTenant("deployments_deploymentarm", "deployment_id", "deployments_deployment"),
        RequireSameTenant("deployments_deploymentarm", "version_id", "registry_modelversion"),
        RequireSameTenant("deployments_grant", "deployment_id", "deployments_deployment"),
        AppendOnly("deployments_replicaevent"),
        migrations.RunSQL(WEIGHTS_SUM_TO_100, "DROP FUNCTION pagoda_arms_sum_to_100()"),
        migrations.RunSQL(
            # Deferred: a change of several arms is judged once, at the commit.
            "CREATE CONSTRAINT TRIGGER arms_sum_to_100 AFTER INSERT OR UPDATE OR DELETE ON deployments_deploymentarm"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pagoda_arms_sum_to_100()",
            "DROP TRIGGER arms_sum_to_100 ON deployments_deploymentarm",
        ),
    ]
