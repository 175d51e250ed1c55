from django.db import migrations

from tenants.rls import EnableRowLevelSecurity, RequireSameTenant


class Migration(migrations.Migration):
    dependencies = [("notifications", "0001_initial"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("notifications_webhook"),
        EnableRowLevelSecurity("notifications_announcement"),
        EnableRowLevelSecurity("notifications_delivery"),
        RequireSameTenant("notifications_delivery", "announcement_id", "notifications_announcement"),
        RequireSameTenant("notifications_delivery", "webhook_id", "notifications_webhook"),
    ]
