"""Triton kernels of the forward pass on a GPU, each beside the plain-torch reference that the tests hold it to."""
