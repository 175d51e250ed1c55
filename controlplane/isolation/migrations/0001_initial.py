import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("tenants", "0006_audit_verified"),
    ]

    operations = [
        migrations.CreateModel(
            name="ReplicaWord",
            fields=[
                ("replica_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("node", models.CharField(max_length=64)),
                ("load", models.JSONField()),
                ("tenants", models.JSONField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["node"], name="replica_word_by_node")],
            },
        ),
        migrations.CreateModel(
            name="CacheBucket",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node", models.CharField(max_length=64)),
                ("deployment_id", models.CharField(max_length=32)),
                ("version_id", models.CharField(blank=True, max_length=32)),
                ("at", models.DateTimeField()),
                ("queries_tokens", models.BigIntegerField()),
                ("hits_tokens", models.BigIntegerField()),
                ("lost_tokens", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="cache_bucket_by_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("deployment_id", "at", "version_id", "node"), name="cache_bucket_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("hits_tokens__gte", 0), ("lost_tokens__gte", 0), ("queries_tokens__gte", 0)
                        ),
                        name="cache_bucket_counts",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProbeRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("replica_id", models.CharField(max_length=64)),
                ("deployment_id", models.CharField(max_length=32)),
                ("version_id", models.CharField(blank=True, max_length=32)),
                ("kind", models.CharField(max_length=16)),
                ("at", models.DateTimeField()),
                ("report", models.JSONField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["deployment_id"], name="probe_by_deployment")],
                "constraints": [
                    models.UniqueConstraint(fields=("replica_id", "kind"), name="probe_once"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["within", "across", "batch", "paced"])),
                        name="probe_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantBucket",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node", models.CharField(max_length=64)),
                ("deployment_id", models.CharField(max_length=32)),
                ("version_id", models.CharField(blank=True, max_length=32)),
                ("at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("guarantee_tokens", models.BigIntegerField()),
                ("cap_tokens", models.BigIntegerField()),
                ("used_tokens", models.BigIntegerField()),
                ("borrowed_tokens", models.BigIntegerField()),
                ("peak_tokens", models.BigIntegerField()),
                ("waiting", models.IntegerField()),
                ("gap_units", models.FloatField()),
                ("bound_units", models.FloatField()),
                ("service_units", models.FloatField()),
                ("preemptions", models.JSONField()),
                ("breaches", models.IntegerField()),
                ("queries_tokens", models.BigIntegerField()),
                ("hits_tokens", models.BigIntegerField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="isolation_bucket_by_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("deployment_id", "tenant", "at", "version_id", "node"), name="isolation_bucket_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("borrowed_tokens__gte", 0),
                            ("bound_units__gte", 0),
                            ("breaches__gte", 0),
                            ("cap_tokens__gte", 0),
                            ("gap_units__gte", 0),
                            ("guarantee_tokens__gte", 0),
                            ("hits_tokens__gte", 0),
                            ("peak_tokens__gte", 0),
                            ("queries_tokens__gte", 0),
                            ("service_units__gte", 0),
                            ("used_tokens__gte", 0),
                            ("waiting__gte", 0),
                        ),
                        name="isolation_bucket_counts",
                    ),
                ],
            },
        ),
    ]
