"""In which form a model calls, as its own template shows."""

import pytest
from calling_model import template

from dataplane.text.call_forms import NoCallForm, form_of
from dataplane.text.template import ChatTemplate


def chat_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("name", ["hermes", "llama3_json"])
def test_the_form_is_the_one_in_which_the_template_writes_calls(name: str) -> None:
    assert form_of(chat_template(template(name))).name == name


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "does not show tools"),
        (template("unknown"), "in a form that is not supported"),
        (template("hermes").replace("<tool_call>", "<function>"), "in a form that is not supported"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", "no tools"),
        (
            "{{ tools | tojson }}{% for message in messages %}{{ message.tool_calls[0].id }}{% endfor %}",
            "does not take",
        ),
    ],
)
def test_a_template_that_cannot_call_says_why(source: str, said: str) -> None:
    with pytest.raises(NoCallForm, match=said):
        form_of(chat_template(source))
