from django.db import migrations

from tenants.rls import EnableRowLevelSecurity, RequireSameTenant

REFUSE_NEW_CONTENT = """
CREATE OR REPLACE FUNCTION pagoda_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id <> OLD.id OR NEW.tenant_id <> OLD.tenant_id OR NEW.model_id <> OLD.model_id OR NEW.number <> OLD.number
        OR NEW.created_at <> OLD.created_at OR NEW.created_by <> OLD.created_by THEN
        RAISE EXCEPTION 'version % is immutable: whose and which it is never changes', OLD.id;
    END IF;
    IF OLD.state IN ('uploading', 'validating') THEN
        RETURN NEW;
    END IF;
    IF to_jsonb(NEW) - 'state' - 'deleted_at' IS DISTINCT FROM to_jsonb(OLD) - 'state' - 'deleted_at' THEN
        RAISE EXCEPTION 'version % is immutable: only its state changes', OLD.id;
    END IF;
    IF OLD.deleted_at IS NOT NULL AND NEW IS DISTINCT FROM OLD THEN
        RAISE EXCEPTION 'version % is deleted', OLD.id;
    END IF;
    RETURN NEW;
END $$
"""
REFUSE_NEW_CONTENT_BEFORE = """
CREATE OR REPLACE FUNCTION pagoda_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(NEW) - 'state' IS DISTINCT FROM to_jsonb(OLD) - 'state' THEN
        RAISE EXCEPTION 'version % is immutable: only its state changes', OLD.id;
    END IF;
    RETURN NEW;
END $$
"""
ALIAS_OF_ITS_MODEL = [
    "CREATE UNIQUE INDEX registry_modelversion_id_model ON registry_modelversion (id, model_id)",
    "ALTER TABLE registry_modelalias ADD CONSTRAINT registry_modelalias_of_its_model FOREIGN KEY (version_id, model_id)"
    " REFERENCES registry_modelversion (id, model_id) DEFERRABLE INITIALLY DEFERRED",
]


class Migration(migrations.Migration):
    dependencies = [("registry", "0003_version_life")]

    operations = [
        EnableRowLevelSecurity("registry_modelalias"),
        EnableRowLevelSecurity("registry_versioncheck"),
        EnableRowLevelSecurity("registry_uploadfile"),
        EnableRowLevelSecurity("registry_uploadpart"),
        RequireSameTenant("registry_modelversion", "derived_from_id", "registry_modelversion"),
        RequireSameTenant("registry_modelalias", "model_id", "registry_model"),
        RequireSameTenant("registry_modelalias", "version_id", "registry_modelversion"),
        RequireSameTenant("registry_versioncheck", "version_id", "registry_modelversion"),
        RequireSameTenant("registry_uploadfile", "version_id", "registry_modelversion"),
        RequireSameTenant("registry_uploadpart", "file_id", "registry_uploadfile"),
        migrations.RunSQL(REFUSE_NEW_CONTENT, REFUSE_NEW_CONTENT_BEFORE),
        migrations.RunSQL(
            ALIAS_OF_ITS_MODEL,
            [
                "ALTER TABLE registry_modelalias DROP CONSTRAINT registry_modelalias_of_its_model",
                "DROP INDEX registry_modelversion_id_model",
            ],
        ),
    ]
