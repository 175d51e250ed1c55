from django.db import migrations

from tenants.rls import AppendOnly, EnableRowLevelSecurity

NO_TENANT = "NULL"
"""The rows belong to the platform alone."""


class Migration(migrations.Migration):
    dependencies = [("metering", "0001_initial"), ("tenants", "0002_security")]

    operations = [
        EnableRowLevelSecurity("metering_spoolrecord"),
        EnableRowLevelSecurity("metering_usagerow"),
        EnableRowLevelSecurity("metering_usagehour"),
        EnableRowLevelSecurity("metering_dirtyhour"),
        EnableRowLevelSecurity("metering_rejectedrecord", NO_TENANT),
        EnableRowLevelSecurity("metering_endedreplica", NO_TENANT),
        EnableRowLevelSecurity("metering_price", NO_TENANT, also_readable_where="true"),
        AppendOnly("metering_spoolrecord"),
        AppendOnly("metering_rejectedrecord"),
    ]
