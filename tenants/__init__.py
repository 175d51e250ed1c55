"""Who you are and what you may do: the lowest app of the control plane."""
