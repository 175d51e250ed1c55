"""What a version holds, in words. Pure."""

from dataplane.contracts.model_config import LinearScaling, Llama3Scaling, ModelConfig, YarnScaling

STATES = {
    "uploading": "Its files are being uploaded.",
    "validating": "It is being checked, step by step.",
    "ready": "Every check has passed: it can be deployed.",
    "rejected": "It cannot be served; the checklist says why and what to do.",
    "archived": "Nothing new is made of it; what serves it goes on.",
}
"""What a state of a version means."""
_FIELDS = {
    "architecture": "Architecture",
    "vocab_size": "Vocabulary",
    "hidden_size": "Width",
    "intermediate_size": "Width of the MLP",
    "num_layers": "Layers",
    "num_heads": "Attention heads",
    "num_kv_heads": "KV heads",
    "head_dim": "Width of a head",
    "context_tokens": "Context, tokens",
    "rms_norm_eps": "Epsilon of the norms",
    "rope_theta": "Base of the rotary positions",
    "rope_scaling": "Stretch of the rotary positions",
    "sliding_rope_theta": "Base of the rotary positions in sliding layers",
    "sliding_window": "Window of sliding layers, tokens",
    "attention_scale": "Scale of attention scores",
    "attention_softcap": "Bound of attention scores",
    "logit_softcap": "Bound of logits",
    "tied_embeddings": "Tied embeddings",
    "attention_bias": "Bias in attention",
    "mlp_bias": "Bias in the MLP",
    "weight_dtype": "Weights in",
    "quantisation": "Quantised to",
    "bos_token_id": "Begin token",
    "eos_token_ids": "End tokens",
    "parameters": "Parameters",
    "tensors": "Tensors",
    "weight_bytes": "Bytes of weights",
    "files": "Files",
    "has_chat_template": "Chat template",
    "licence": "Licence",
}

_FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
    "gpt2": "GPT-2",
}
"""What people call an architecture."""


_QUANTISED = {
    "": "",
    "int8": " Its matrices are quantised to int8, and it runs in that.",
    "int4": " Its embeddings are quantised to int8, its layers to int4, and it runs in that.",
    "kv-int8": " It wants its keys and values in int8.",
}


def field(name: str) -> str:
    """Return what people call a field of a config, or a count of a version."""
    return _FIELDS.get(name) or name.replace("_", " ").capitalize()


def value(found: object) -> str:
    """Return a field's value as people read it."""
    if found is None or found in ((), ""):
        return "none"
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, int):
        return f"{found:,}"
    if isinstance(found, float):
        return f"{found:,.0f}" if found >= 1 else f"{found:g}"
    if isinstance(found, tuple):
        return ", ".join(str(each) for each in found)
    if isinstance(found, LinearScaling | Llama3Scaling | YarnScaling):
        found = f"{found.factor:g} times, {type(found).__struct_config__.tag}"
    return _FAMILIES.get(str(found), str(found))


def sentence(config: ModelConfig) -> str:
    """Tell a config in a sentence or two."""
    heads = f"{config.num_heads} attention heads"
    if config.num_kv_heads != config.num_heads:
        heads += f" that share {config.num_kv_heads} of keys and values"
    if config.sliding_layers:
        heads += f"; {len(config.sliding_layers)} of its layers see the last {config.sliding_window:,} tokens"
    tied = "; input and output share one table of embeddings" if config.tied_embeddings else ""
    return (
        f"A {_FAMILIES[config.architecture]} of {config.num_layers} layers, {config.hidden_size:,} wide, with "
        f"{heads}. It knows {config.vocab_size:,} tokens{tied}, reads up to {config.context_tokens:,} of them at once, "
        f"and was saved in {config.weight_dtype}.{_QUANTISED[config.quantisation]}"
    )
