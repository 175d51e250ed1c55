"""Hostile chat templates: escapes from the sandbox, and bombs of time, memory, output and depth."""

from dataplane.inspect.names import CHAT_TEMPLATE
from dataplane.inspect.names import TOKENIZER_CONFIG as SETTINGS
from dataplane.text.template import MAX_TEMPLATE_BYTES
from tests.hostile.case import ACCEPTED, EITHER, Case, Change, both, cases, change, remove, write

BOMBS = {
    "long text": "{{ 'a' * 10**9 }}",
    "long text of a variable": "{% set n = 1000000000 %}{{ 'a' * n }}",
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless output": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "large integers": "{% set ns = namespace(n=999) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "range": "{{ range(10**12) | list }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "list": "{{ [0] * 10**9 }}",
}
"""Each fails with a sentence."""

MORE_BOMBS = {
    "text that doubles": "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "list that doubles": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}{{ ns.s | length }}",
    "padding": "{{ 'x'.ljust(2000000000) }}",
    "padding filter": "{{ 'x' | center(2000000000) }}",
    "padding of a number": "{{ '%2000000000d' % 1 }}",
    "padding of a format": "{{ '{:>2000000000}'.format(1) }}",
    "indentation": "{{ 'x\ny' | indent(2000000000) }}",
    "JSON indentation": "{{ messages | tojson(indent=1000000000) }}",
    "replacement of nothing": "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
    "join": "{{ range(99999) | join('x' * 1000000) }}",
    "slices": "{{ [1] | slice(2000000000) | list | length }}",
    "batch": "{{ [1] | batch(2000000000, 0) | list | length }}",
    "wrapping": "{{ ('x ' * 500000) | wordwrap(1) | wordwrap(1) | wordwrap(1) }}{% for a in range(99) %}"
    "{{ ('x ' * 500000) | wordwrap(1) | length }}{% endfor %}",
    "links": "{% for a in range(99) %}{{ ('a@b.c ' * 100000) | urlize | length }}{% endfor %}",
    "time's form": "{{ strftime_now('%c' * 400000) | length }}{{ strftime_now('%1000000000d') }}{{ 1 // 0 }}",
    "additions": "{{ " + "1+" * 32_000 + "1 }}",
    "filters": "{{ 'x'" + "|trim" * 13_000 + " }}",
    "conditions": "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "comparisons": "{{ " + "not " * 16_000 + "1 }}",
    "macros in turn": "{% macro a(n) %}{{ a(n) ~ a(n) }}{% endmacro %}{{ a(1) }}",
    "loop in itself": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "seven million characters": "{% for a in range(70) %}{{ 'x' * 100000 }}{% endfor %}",
}

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attribute filter": "{{ (messages | attr('__class__')).__base__ }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "environment": "{{ self._TemplateReference__context.environment.loader }}",
    "change of the messages": "{{ messages.append(1) }}",
    "change of a message": "{{ messages[0].update({'role': 'x'}) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
}
"""Each fails, or renders nothing."""

RUNNING = {
    "popen": "{{ cycler.__init__.__globals__.os.popen('touch RAN').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.system('touch RAN') }}",
    "namespace": "{{ namespace.__init__.__globals__.os.mkdir('RAN') }}",
    "generator": "{{ (range(1) | map('upper')).gi_frame.f_globals.os.mkdir('RAN') }}",
    "format_map": "{{ '{0.__globals__[os]}'.format_map({'0': raise_exception}) }}",
    "strftime": "{{ strftime_now.__globals__.os.mkdir('RAN') }}",
    "map of attributes": "{{ [raise_exception] | map(attribute='__globals__') | list }}",
    "filter by name": "{{ ['__class__'] | map('attr', messages) | list }}{{ (messages | first) ['__class__'] }}",
    "extends": "{% extends '/etc/passwd' %}",
    "import of a file": "{% from '/proc/self/environ' import x %}",
}
"""Each would leave the marker RAN if it got out; some render nothing."""

BROKEN = {
    "syntax": "{% for %}",
    "unknown filter": "{{ messages | evil }}",
    "own refusal": "{{ raise_exception('only two turns') }}",
    "index": "{{ messages[99].content.strip() }}",
    "type": "{{ 1 + messages[0].content }}",
    "too long": "x" * (MAX_TEMPLATE_BYTES + 1),
}
"""Each fails with a sentence."""

WORDS = {
    "refusal with NUL": "{{ raise_exception('a\\x00b') }}",
    "refusal with a lone surrogate": "{{ raise_exception('\\ud800') }}",
    "refusal of a megabyte": "{{ raise_exception('x' * 1000000) }}",
    "refusal of markup": "{{ raise_exception('<script>alert(1)</script>\\x1b[2J') }}",
    "unknown filter of markup": "{{ 1 | evil('<script>') }}",
    "prompt with a lone surrogate": "{{ '\\ud800' }}",
    "nothing": "{# nothing #}",
}
"""What they say must be fit for a page, a log and a database."""


def marked(source: str) -> Change:
    return lambda model: (model / CHAT_TEMPLATE).write_text(source.replace("RAN", str(model.parent / "ran")))


def in_settings(source: object) -> Change:
    return both(remove(CHAT_TEMPLATE), change(SETTINGS, chat_template=source))


OTHERS: dict[str, tuple[Change, str | None]] = {
    "bytes": (write(CHAT_TEMPLATE, b"\xff\xfe"), "UTF-8"),
    "brackets": (write(CHAT_TEMPLATE, b"{{" + b"(" * 65_000), "nested"),
    "braces": (write(CHAT_TEMPLATE, b"{{x}}" * 13_000 + b"{%"), "wrong|more than"),
    "256 KiB of braces": (write(CHAT_TEMPLATE, b"{{x}}" * 52_428), "the limit is 65536"),
    "3 MB of braces in the settings": (in_settings("{{x}}" * 600_000), "longer than 65536 bytes"),
    "in the settings": (in_settings("{% if"), "template"),
    "bomb in the settings": (in_settings(BOMBS["nested ranges"]), "more than"),
    "object in the settings": (in_settings({"evil": 1}), "not a template"),
    "named without a default": (in_settings([{"name": "x", "template": "y"}]), "not a template"),
    "named with a bomb": (in_settings([{"name": "default", "template": BOMBS["recursion"]}]), "template"),
    "no template": (remove(CHAT_TEMPLATE), ACCEPTED),
    "markup": (write(CHAT_TEMPLATE, "<script>alert(1)</script>{{ messages[0].content }}"), ACCEPTED),
}


def templates(table: dict[str, str], refused: str | None) -> dict[str, tuple[Change, str | None]]:
    return {name: (marked(source), refused) for name, source in table.items()}


CASES: list[Case] = [
    *cases("template bomb", templates(BOMBS | MORE_BOMBS, CHAT_TEMPLATE)),
    *cases("template escape", templates(ESCAPES | RUNNING, EITHER)),
    *cases("template", templates(BROKEN | WORDS, CHAT_TEMPLATE)),
    *cases("template", OTHERS),
]
