from django.db import migrations

from tenants.rls import EnableRowLevelSecurity


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("jobs_job"),
        EnableRowLevelSecurity("jobs_tick", column=None),
    ]
