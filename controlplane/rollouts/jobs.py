"""The clock of the rollouts."""
