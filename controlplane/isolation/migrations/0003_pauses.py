from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("isolation", "0002_security"),
        ("tenants", "0006_audit_verified"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="tenantbucket",
            name="isolation_bucket_counts",
        ),
        migrations.AddField(
            model_name="tenantbucket",
            name="pauses",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddConstraint(
            model_name="tenantbucket",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("borrowed_tokens__gte", 0),
                    ("bound_units__gte", 0),
                    ("breaches__gte", 0),
                    ("cap_tokens__gte", 0),
                    ("gap_units__gte", 0),
                    ("guarantee_tokens__gte", 0),
                    ("hits_tokens__gte", 0),
                    ("pauses__gte", 0),
                    ("peak_tokens__gte", 0),
                    ("queries_tokens__gte", 0),
                    ("service_units__gte", 0),
                    ("used_tokens__gte", 0),
                    ("waiting__gte", 0),
                ),
                name="isolation_bucket_counts",
            ),
        ),
    ]
