"""The job system: rows are the queue, Celery is the clock."""
