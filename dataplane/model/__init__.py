"""The torch side of a replica: packed weights, the Llama family's forward pass, the paged KV pool, the sampler."""
