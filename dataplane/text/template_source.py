"""Where a model folder keeps its chat template and the special tokens that the template may name."""

from typing import Any

from dataplane.text.template import TemplateFailed

SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
"""Files that name special tokens; the later wins."""
MAX_SETTINGS_BYTES = 4 * 1024 * 1024
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def template_source(file: bytes | None, settings: dict[str, Any]) -> str | None:
    """Return the chat template: the file's, else ``chat_template`` of tokenizer_config.json, else None.

    Raises:
        TemplateFailed: not text, or several named templates without one called ``default``.
    """
    if file is not None:
        try:
            return file.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TemplateFailed("chat_template.jinja is not UTF-8 text") from error
    source = settings.get("chat_template")
    if type(source) is list:
        named = {entry.get("name"): entry.get("template") for entry in source if type(entry) is dict}
        source = named.get("default", 0)
    if source is not None and type(source) is not str:
        raise TemplateFailed("chat_template of tokenizer_config.json is not a template")
    return source


def named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens that a template may name (``bos_token``, ``eos_token`` ...), by name."""
    tokens: dict[str, str] = {}
    for name in _NAMED:
        value = settings.get(name)
        text = value.get("content") if type(value) is dict else value
        if type(text) is str:
            tokens[name] = text
    return tokens
