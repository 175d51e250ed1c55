"""One file for each architecture: the program of a config, and its weights made of a checkpoint's tensors."""
