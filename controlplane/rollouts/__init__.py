"""Moves traffic to a new version step by step, judged by the machine and approved by a person."""
