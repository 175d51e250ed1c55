"""How the data plane keeps its copy of the catalog: two paths to a newer one, a file for the last good one."""
