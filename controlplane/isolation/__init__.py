"""What isolation a tenant has on a deployment, as its replicas measure it: memory, turns, and what probes can see."""
