from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0004_arm_hold"),
    ]

    operations = [
        migrations.AddField(
            model_name="deployment",
            name="kv_dtype",
            field=models.CharField(default="auto", max_length=8),
        ),
        migrations.RemoveConstraint(
            model_name="deployment",
            name="deployment_dtype_known",
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("dtype__in", ("fp32", "fp16", "bf16", "int8", "int4"))),
                name="deployment_dtype_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("kv_dtype__in", ("auto", "fp32", "fp16", "bf16", "int8"))),
                name="deployment_kv_dtype_known",
            ),
        ),
    ]
