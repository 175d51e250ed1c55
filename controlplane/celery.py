"""Celery: the clock of the jobs and the carrier of their ids. Rows in PostgreSQL are the queue."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("pagoda")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
