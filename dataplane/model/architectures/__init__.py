"""One file for each architecture: the program of a config, and its matrices and vectors made of a checkpoint's tensors."""
