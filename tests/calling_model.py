"""A tiny random model whose chat template shows tools, in the form of Hermes and Qwen or in that of Llama 3."""

from pathlib import Path

from tiny_models import make_tiny_llama

_OPEN, _CLOSE = "{{ '<|im_start|>", "<|im_end|>\n' }}"
_MESSAGES = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}CALL{% endfor %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOOLS = "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
_CALLS = {
    "hermes": (
        '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \''
        " + call.function.arguments | tojson + '}\n</tool_call>' }}"
    ),
    "llama3_json": (
        "{{ '{\"name\": \"' + call.function.name + '\", \"parameters\": ' + call.function.arguments | tojson + '}' }}"
    ),
    "unknown": "{{ call.function.name + '(' + call.function.arguments | tojson + ')' }}",
}


def template(form: str) -> str:
    """A chat template that shows tools and writes calls in ``form``."""
    return _TOOLS + _MESSAGES.replace("CALL", _CALLS[form])


def make_calling_model(folder: Path, form: str) -> Path:
    """Write a tiny model with such a template to ``folder``, and return it."""
    model = make_tiny_llama(folder, context_tokens=2048)
    (model / "chat_template.jinja").write_text(template(form))
    return model
