"""A model's chat template: a stranger's Jinja program, run in the immutable sandbox with limits.

The sandbox stops escapes, not resource bombs: those meet a limit of processor time, a limit of output and, since this
runs in the child only, the child's limit of memory. The environment is the one that transformers gives to templates
(its ``utils/chat_template_utils.py``), so the same template renders the same text.
"""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_BYTES = 64 * 1024
MAX_RENDERED_CHARS = 8 * 1024 * 1024
RENDER_CPU_S = 2.0
TRIAL_CPU_S = 0.4
"""For each of the four steps of judging a template. Of 20 KB, as the longest honest ones have, compiling takes most:
about 0.15 s."""
_MAX_PRODUCT_SIZE = 1024 * 1024


class TemplateFailed(Exception):
    """The template cannot be used, or refuses these messages; the message is a sentence for the caller."""


class _OutOfTime(BaseException):
    """Not an Exception, so that nothing on the way up takes it for an error of its own."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's turns for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - the type is jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses products and powers that would take the memory or the time before a limit could act."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - jinja2's types
        if operator == "**":
            raise SecurityError("powers are not available in a chat template")
        if max(_size(left), 1) * max(_size(right), 1) > _MAX_PRODUCT_SIZE:
            raise SecurityError("a product in the chat template is too large")
        return super().call_binop(context, operator, left, right)


def _size(operand: object) -> int:
    """The factor that an operand can bring to a product: its value as a count, or its length."""
    if isinstance(operand, int):
        return abs(operand)
    return len(operand) if isinstance(operand, str | bytes | list | tuple) else 1


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], autoescape=False
    )
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateFailed(f"The model's chat template refuses these messages: {str(message)[:300]}")


def _to_json(
    value: Any,  # noqa: ANN401 - any value of a template
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def check_syntax(source: str, cpu_s: float = TRIAL_CPU_S) -> None:
    """Parse without running or folding anything, within ``cpu_s`` of processor time.

    Raises:
        TemplateFailed: not a template, or one over a limit.
    """
    _check_length(source)
    with _cpu_limit(cpu_s):
        _environment().parse(source)


def _check_length(source: str) -> None:
    if len(source.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
        raise TemplateFailed(f"the chat template is longer than {MAX_TEMPLATE_BYTES} bytes")


class ChatTemplate:
    """One compiled template.

    Args:
        source: the template's text.
        variables: what every rendering sees besides the messages: ``bos_token`` and its like.
        cpu_s: processor time that compiling it and each rendering may take.

    Raises:
        TemplateFailed: it does not compile within the limits.
    """

    def __init__(self, source: str, variables: Mapping[str, str], cpu_s: float = RENDER_CPU_S) -> None:
        _check_length(source)
        self._variables = dict(variables)
        self._cpu_s = cpu_s
        with _cpu_limit(cpu_s):
            self._template = _environment().from_string(source)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the prompt of ``messages``, opened for the assistant's answer, which may call ``tools``.

        Raises:
            TemplateFailed: the template raised, or went over a limit.
        """
        parts: list[str] = []
        length = 0
        context: dict[str, Any] = {
            "messages": messages,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        with _cpu_limit(self._cpu_s):
            for part in self._template.generate(**self._variables, **context):
                length += len(part)
                if length > MAX_RENDERED_CHARS:
                    raise TemplateFailed(f"the prompt is longer than {MAX_RENDERED_CHARS} characters")
                parts.append(part)
        return "".join(parts)


@contextmanager
def _as_failure() -> Iterator[None]:
    """Turn whatever a template does wrong into :class:`TemplateFailed`."""
    try:
        yield
    except TemplateFailed:
        raise
    except MemoryError:
        raise TemplateFailed("the chat template took too much memory") from None
    except RecursionError:
        raise TemplateFailed("the chat template is nested too deeply") from None
    except jinja2.TemplateError as error:
        raise TemplateFailed(f"the chat template is wrong: {str(error.message)[:300]}") from None
    except Exception as error:  # noqa: BLE001 - templates call methods of str and dict, which raise anything
        raise TemplateFailed(f"the chat template failed with {type(error).__name__}: {str(error)[:300]}") from None


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """End the body, in the main thread, after ``seconds`` of processor time of the process.

    Raises:
        TemplateFailed: for that, and for whatever else a template does wrong.
    """

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with _as_failure():
            yield
    except _OutOfTime:
        raise TemplateFailed(f"the chat template took more than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
