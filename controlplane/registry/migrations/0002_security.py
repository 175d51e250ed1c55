from django.db import migrations

from tenants.rls import AppendOnly, EnableRowLevelSecurity, RequireSameTenant

REFUSE_NEW_CONTENT = """
CREATE FUNCTION pagoda_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(NEW) - 'state' IS DISTINCT FROM to_jsonb(OLD) - 'state' THEN
        RAISE EXCEPTION 'version % is immutable: only its state changes', OLD.id;
    END IF;
    RETURN NEW;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("registry", "0001_initial"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("registry_model"),
        EnableRowLevelSecurity("registry_modelversion"),
        EnableRowLevelSecurity("registry_artifact"),
        EnableRowLevelSecurity("registry_versionfile"),
        RequireSameTenant("registry_modelversion", "model_id", "registry_model"),
        RequireSameTenant("registry_versionfile", "version_id", "registry_modelversion"),
        RequireSameTenant("registry_versionfile", "artifact_id", "registry_artifact"),
        AppendOnly("registry_versionfile"),
        migrations.RunSQL(REFUSE_NEW_CONTENT, "DROP FUNCTION pagoda_version_is_immutable()"),
        migrations.RunSQL(
            "CREATE TRIGGER version_is_immutable BEFORE UPDATE ON registry_modelversion"
            " FOR EACH ROW EXECUTE FUNCTION pagoda_version_is_immutable()",
            "DROP TRIGGER version_is_immutable ON registry_modelversion",
        ),
    ]
