from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0006_cache_epoch"),
    ]

    operations = [
        migrations.AddField(
            model_name="grant",
            name="pace_ms",
            field=models.IntegerField(default=0),
        ),
        migrations.AddConstraint(
            model_name="grant",
            constraint=models.CheckConstraint(
                condition=models.Q(("pace_ms__gte", 0), ("pace_ms__lte", 1000)),
                name="grant_pace",
            ),
        ),
    ]
