import contextlib

import jinja2
import pytest

from dataplane.text.template import ChatTemplate, TemplateFailed, check_syntax
from tests.hostile.template_cases import BOMBS, BROKEN, ESCAPES

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": ' Hi "you"  é🙂 '},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

GOOD = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m.content | trim }}\n{% endfor %}",
    "llama 2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system = messages[0].content %}{% endif %}{% for m in loop_messages %}{{ bos_token }}[INST] "
        "{{ system if loop.first }}{{ m.content }} [/INST]{{ eos_token }}{% endfor %}"
    ),
    "indented blocks": "{% for m in messages %}\n    {%- if m.role == 'user' %}\n    u: {{ m.content }}\n"
    "    {%- endif %}\n{% endfor %}\n{% if add_generation_prompt %}\nassistant\n{% endif %}\n",
    "namespace and loop control": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{{ m.content }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[1] | tojson(indent=2) }}{{ tools is none }}{{ documents is none }}",
    "training marks": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "bytes of text": "{% for m in messages %}{{ '%s: ' % m.role }}{{ '-' * 20 }}{{ m.content.strip() }}{% endfor %}",
}


@pytest.mark.parametrize("source", GOOD.values(), ids=GOOD)
def test_a_good_template_renders_what_transformers_renders(source: str) -> None:
    from transformers.utils import chat_template_utils as templates

    theirs, _ = templates.render_jinja_template(
        conversations=[MESSAGES], chat_template=source, add_generation_prompt=True, **TOKENS
    )
    assert ChatTemplate(source, TOKENS).render(MESSAGES) == theirs[0]


@pytest.mark.parametrize("source", (BOMBS | BROKEN).values(), ids=BOMBS | BROKEN)
def test_bombs_and_mistakes_fail_with_a_sentence(source: str) -> None:
    with pytest.raises(TemplateFailed, match=r"chat template|prompt"):
        ChatTemplate(source, TOKENS).render(MESSAGES)


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_an_escape_sees_nothing(source: str) -> None:
    messages = [dict(message) for message in MESSAGES]
    with contextlib.suppress(TemplateFailed):
        assert ChatTemplate(source, TOKENS).render(messages) == ""
    assert messages == MESSAGES


def test_the_templates_own_refusal_reaches_the_caller() -> None:
    with pytest.raises(TemplateFailed, match="only two turns"):
        ChatTemplate(BROKEN["own refusal"], TOKENS).render(MESSAGES)


def test_after_a_bomb_the_next_rendering_works() -> None:
    template = ChatTemplate("{% if messages | length > 1 %}" + BOMBS["nested ranges"] + "{% endif %}ok", TOKENS)
    with pytest.raises(TemplateFailed, match="took more than"):
        template.render(MESSAGES)
    assert template.render(MESSAGES[:1]) == "ok"


def test_the_check_of_the_syntax_runs_nothing() -> None:
    for source in [*GOOD.values(), *BOMBS.values()][:-3]:
        check_syntax(source)
    with pytest.raises(TemplateFailed):
        check_syntax(BROKEN["syntax"])


def test_a_template_that_takes_long_to_parse_is_no_template() -> None:
    with pytest.raises(TemplateFailed, match="longer than 65536 bytes"):
        check_syntax(BROKEN["too long"])
    with pytest.raises(TemplateFailed, match=r"more than 0\.01 s"):
        check_syntax("{{x}}" * 13_000, cpu_s=0.01)


def test_the_sandbox_is_what_stops_an_escape() -> None:
    # The same text in an ordinary environment gets out: so the tests above would see it if the sandbox were gone.
    escaped = jinja2.Environment(autoescape=True).from_string("{{ ''.__class__.__mro__ }}").render()
    assert "object" in escaped
