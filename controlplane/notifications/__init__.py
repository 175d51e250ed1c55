"""What people and their systems are told: e-mail and signed webhooks, by rows that outlive a crash."""
