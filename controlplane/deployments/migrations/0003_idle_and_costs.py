import django.db.models.deletion
from django.db import migrations, models

from tenants.rls import EnableRowLevelSecurity, RequireSameTenant


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0002_security"),
        ("tenants", "0002_security"),
    ]

    operations = [
        migrations.CreateModel(
            name="RestartCosts",
            fields=[
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="restart_costs",
                        serialize=False,
                        to="deployments.deployment",
                    ),
                ),
                ("costs", models.JSONField()),
                ("at", models.DateTimeField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="deployment",
            name="asleep_after_s",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="deployment",
            name="cold_wait_s",
            field=models.IntegerField(default=30),
        ),
        migrations.AddField(
            model_name="deployment",
            name="disk_after_s",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="deployment",
            name="revision",
            field=models.IntegerField(default=1),
        ),
        migrations.AddField(
            model_name="deployment",
            name="schedules",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="deployment",
            name="warm_after_s",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="fleetnode",
            name="resources",
            field=models.JSONField(null=True),
        ),
        migrations.AlterField(
            model_name="replicaevent",
            name="deployment_id",
            field=models.CharField(blank=True, max_length=64),
        ),
        migrations.AlterField(
            model_name="replicarow",
            name="deployment_id",
            field=models.CharField(blank=True, max_length=64),
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("asleep_after_s__gte", 1),
                    ("cold_wait_s__gte", 0),
                    ("disk_after_s__gte", 1),
                    ("warm_after_s__gte", 1),
                    ("disk_after_s__gte", models.F("asleep_after_s")),
                    ("warm_after_s__gte", models.F("asleep_after_s")),
                    ("disk_after_s__gte", models.F("warm_after_s")),
                ),
                name="deployment_idle",
            ),
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(condition=models.Q(("revision__gte", 1)), name="deployment_revision"),
        ),
        EnableRowLevelSecurity("deployments_restartcosts"),
        RequireSameTenant("deployments_restartcosts", "deployment_id", "deployments_deployment"),
    ]
