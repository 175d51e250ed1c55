"""The engine: which sequence computes which tokens next, in whose blocks. Pure Python, no clock, no sockets."""
