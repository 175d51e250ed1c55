"""Kernels of the forward pass, each beside the plain-torch reference that the tests hold it to."""
