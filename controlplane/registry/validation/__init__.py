"""What an uploaded version goes through on its way to READY or REJECTED: a checklist, and the job that works it off."""
