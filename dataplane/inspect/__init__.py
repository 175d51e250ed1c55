"""Torch-free, bounded reading of a model folder that a stranger wrote: ``python -m dataplane.inspect DIR``."""
