"""The closed set of files that a model folder may have, as a browser asks it before it sends anything. Pure.

It is the inspector's set in the words of a page; the inspector, which looks at the content too, has the last word.
"""

TAKEN = (
    r"^((config|generation_config|tokenizer|tokenizer_config|special_tokens_map|model\.safetensors\.index)\.json"
    r"|chat_template\.jinja|README(\.md|\.txt)?|LICENSE(\.md|\.txt)?|model(-[0-9]{5}-of-[0-9]{5})?\.safetensors)$"
)
"""The names that are taken. A pattern that means the same in Python and JavaScript, as those of :data:`REFUSALS`."""

_TO_SAFETENSORS = "Save the model with save_pretrained(..., safe_serialization=True)."
REFUSALS = (
    (r"/", "It lies in a folder below. A model folder has none."),
    (
        r"\.(bin|pt|pth|pkl|pickle|ckpt|joblib)$",
        f"A pickle: loading one runs code, so none is taken. {_TO_SAFETENSORS}",
    ),
    (r"\.(py|pyc|so|sh|ipynb)$", "Code: none of a model folder is ever run."),
    (r"\.(gguf|ggml)$", "GGUF is not read. Bring the original weights as safetensors in fp32, fp16 or bf16."),
    (r"\.(zip|tar|gz|tgz|bz2|xz|zst|7z|rar)$", "An archive: none is unpacked. Bring the files themselves."),
    (r"\.(h5|msgpack|onnx|tflite|npz|npy|pb)$", f"Weights of another framework. {_TO_SAFETENSORS}"),
    (r"\.safetensors$", "Weights are named model.safetensors, or model-00001-of-0000N.safetensors."),
    (r"\.model$", "SentencePiece is not read; tokenizer.json holds the tokenizer."),
    (r"", "It does not belong in a model folder."),
)
"""Why the others are refused, by what they seem to be: patterns that pass over case, the first that fits counts."""

NEEDED = (
    (r"^config\.json$", "config.json"),
    (r"^tokenizer\.json$", "tokenizer.json"),
    (r"\.safetensors$", "the weights (model.safetensors, or its shards)"),
)
"""What no model does without."""
