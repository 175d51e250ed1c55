"""A discrete-event simulator: the real engine on a model whose steps take as long as a table says."""
