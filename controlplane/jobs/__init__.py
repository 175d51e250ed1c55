"""The job system: rows are the queue, Celery is the clock.

A service writes a job in the transaction of its change (:func:`controlplane.jobs.queue.enqueue`). The clock ticks each
second: it makes jobs of what is periodic, takes back expired leases, and sends the ids of due jobs to workers. A worker
claims a job under a lease with a fencing token and runs the handler of its kind. The token is checked where the effect
is committed, so crashes, expired leases and messages delivered twice leave one effect. After three tries a job is dead
and stays visible until somebody retries it.
"""
