from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0005_precisions"),
    ]

    operations = [
        migrations.AddField(
            model_name="grant",
            name="cache_epoch",
            field=models.IntegerField(default=0),
        ),
        migrations.AddConstraint(
            model_name="grant",
            constraint=models.CheckConstraint(
                condition=models.Q(("cache_epoch__gte", 0)),
                name="grant_cache_epoch",
            ),
        ),
    ]
