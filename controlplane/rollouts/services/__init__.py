"""Changes of rollouts."""
