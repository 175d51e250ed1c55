from django.db import migrations

from tenants.rls import LOOKUP, USER, AppendOnly, EnableRowLevelSecurity, RequireSameTenant, is_setting

BY_LOOKUP = is_setting("lookup", LOOKUP)
BY_TOKEN = is_setting("token_digest", LOOKUP)
MY_TENANTS = f"""
    id IN (SELECT tenant_id FROM tenants_member WHERE {is_setting("user_id", USER)})
    OR id IN (SELECT tenant_id FROM tenants_apikey WHERE {BY_LOOKUP})
    OR id IN (SELECT tenant_id FROM tenants_invitation WHERE {BY_TOKEN})
"""

NOTIFY = """
CREATE FUNCTION pagoda_notify_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pagoda_outbox', '');
    RETURN NULL;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        EnableRowLevelSecurity("tenants_tenant", "id", also_readable_where=MY_TENANTS),
        EnableRowLevelSecurity("tenants_member", also_readable_where=is_setting("user_id", USER)),
        EnableRowLevelSecurity("tenants_invitation", also_readable_where=BY_TOKEN),
        EnableRowLevelSecurity("tenants_apikey", also_readable_where=BY_LOOKUP),
        EnableRowLevelSecurity(
            "tenants_apikeysecret", also_readable_where=f"key_id IN (SELECT id FROM tenants_apikey WHERE {BY_LOOKUP})"
        ),
        EnableRowLevelSecurity("tenants_quota"),
        EnableRowLevelSecurity("tenants_auditevent"),
        EnableRowLevelSecurity("tenants_audithead"),
        EnableRowLevelSecurity("tenants_outboxevent"),
        RequireSameTenant("tenants_apikeysecret", "key_id", "tenants_apikey"),
        RequireSameTenant("tenants_quota", "key_id", "tenants_apikey"),
        AppendOnly("tenants_auditevent"),
        migrations.RunSQL(NOTIFY, "DROP FUNCTION pagoda_notify_outbox()"),
        migrations.RunSQL(
            "CREATE TRIGGER outbox_notify AFTER INSERT ON tenants_outboxevent"
            " FOR EACH STATEMENT EXECUTE FUNCTION pagoda_notify_outbox()",
            "DROP TRIGGER outbox_notify ON tenants_outboxevent",
        ),
    ]
