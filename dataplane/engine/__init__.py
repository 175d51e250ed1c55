"""The engine: which sequence computes which tokens next, and whose blocks they use. Pure Python, no clock, no sockets."""
