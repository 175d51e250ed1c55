"""Rollouts and their journal."""
