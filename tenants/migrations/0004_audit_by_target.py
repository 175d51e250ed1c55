from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_storage_limits")]

    operations = [
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["target_id", "-sequence"], name="audit_by_target"),
        ),
    ]
