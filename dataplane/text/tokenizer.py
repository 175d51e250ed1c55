"""A model's tokenizer and chat template, as the child uses them.

Who may write a control token: the chat template, the post-processor (a begin-of-text token), nobody else. A plain
prompt that spells ``<|im_end|>`` gets the tokens of that text; so does a chat message, although the template's own
``<|im_end|>`` around it is one token.

For a chat that needs care: a message that spells a control token, or begins or ends with a piece of one, is rendered
with a mark (a private-use character found nowhere in the request) inside that spelling. No control token can match
across a mark, whatever the template puts beside it. The library then finds the template's control tokens, and the text
between them is encoded without the marks and without control tokens. A chat without such a message, that is nearly
every one, is encoded in one go, exactly as transformers does.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from dataplane.contracts import strict_json
from dataplane.contracts.errors import Code
from dataplane.text.call_forms import NoCallForm, form_of
from dataplane.text.detokenize import Detokenizer, Pieces, VocabularyRefused, spell_out
from dataplane.text.grammar import CallForm
from dataplane.text.template import MAX_TEMPLATE_BYTES, RENDER_CPU_S, ChatTemplate, TemplateFailed
from dataplane.text.template_source import MAX_SETTINGS_BYTES, SETTINGS, named_tokens, template_source
from dataplane.text.tokenizer_components import TokenizerRefused
from dataplane.text.tokenizer_schema import MAX_FILE_BYTES, read_vocabulary

MAX_TEXT_CHARS = 4 * 1024 * 1024
ROLES = ("system", "developer", "user", "assistant", "tool")
_MARKS = range(0x10_0000, 0x10_FFFE)  # plane 16, private use


class TextFailed(Exception):
    """A call that fails alone. ``code`` is an entry of the catalogue of errors."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat, its content flattened to text.

    ``tool_calls`` are the assistant's calls in OpenAI's shape, but for ``arguments``, which are an object;
    ``tool_call_id`` and ``name`` say which of them a message of the role ``tool`` answers.
    """

    role: str
    content: str
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str = ""
    name: str = ""

    def fields(self) -> dict[str, Any]:
        """Return what a template sees: what is not there has no key."""
        optional = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id, "name": self.name}
        return {"role": self.role, "content": self.content} | {key: value for key, value in optional.items() if value}


_messages: Final = msgspec.json.Decoder(list[Message])
_tools: Final = msgspec.json.Decoder(list[dict[str, Any]])


class ModelTokenizer:
    """The tokenizer and the template of one model folder.

    Args:
        model_dir: the folder.
        with_template: whether to load the template too.

    Raises:
        TextFailed: the tokenizer or the template is not one we load.

    Attributes:
        spellings: what its tokens are.
        detokenizer: turns them into text.
    """

    def __init__(self, model_dir: Path, *, with_template: bool = True) -> None:
        raw = _read(model_dir / "tokenizer.json", MAX_FILE_BYTES)
        if raw is None:
            raise TextFailed(Code.TOKENIZER_FAILED, "the model folder has no tokenizer.json")
        try:
            vocabulary = read_vocabulary(raw)
        except TokenizerRefused as error:
            raise TextFailed(Code.TOKENIZER_FAILED, f"tokenizer.json: {error.message}. {error.mend}") from error
        # Reading the file takes the library much memory, so what else is large is let go before, and asked of it after.
        vocabulary = vocabulary._replace(tokens={})
        self._library = Tokenizer.from_buffer(raw)
        tokens = {number: text for text, number in self._library.get_vocab(with_added_tokens=True).items()}
        self._specials = tuple(vocabulary.special)
        self._forbidden = frozenset(vocabulary.special.values()) - {vocabulary.unknown_id}
        try:
            self.spellings = spell_out(vocabulary.decoder, tokens, frozenset(vocabulary.special.values()))
        except VocabularyRefused as error:
            raise TextFailed(Code.TOKENIZER_FAILED, f"tokenizer.json: {error}") from error
        self.detokenizer = Detokenizer(self.spellings)
        self._longest_token_bytes = self.detokenizer.longest_text_bytes
        if isinstance(vocabulary.decoder, Pieces):  # of a prompt it stands for what it was before the replacements
            names = set(tokens.values()) - vocabulary.special.keys()
            self._longest_token_bytes = max((len(name.encode()) for name in names), default=0)
        self._specials_begin = tuple({special[:n] for special in self._specials for n in range(1, len(special))})
        self._specials_end = tuple({special[-n:] for special in self._specials for n in range(1, len(special))})
        self._template = load_template(model_dir) if with_template else None
        self._call_form: CallForm | None = None

    def encode_text(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Return the ids of a plain prompt, with what the post-processor adds (a begin-of-text token).

        Raises:
            TextFailed: too long, for ``max_tokens`` in any case, or nothing to encode.
        """
        self._check_length(max_tokens, text)
        return _some(self._encode_plain(text, framed=True))

    def call_form(self) -> CallForm:
        """Return in which form this model calls functions.

        Raises:
            TextFailed: it cannot, or in none that we read.
        """
        if self._call_form is None:
            try:
                self._call_form = form_of(self._required_template)
            except NoCallForm as error:
                raise TextFailed(Code.UNSUPPORTED_PARAMETER, f"tools: {error}") from error
        return self._call_form

    @property
    def _required_template(self) -> ChatTemplate:
        if self._template is None:
            raise TextFailed(Code.TEMPLATE_FAILED, "This model has no chat template; call /v1/completions instead.")
        return self._template

    def render_chat(
        self, raw_messages: bytes, max_tokens: int | None = None, *, raw_tools: bytes = b"[]"
    ) -> "RenderedChat":
        """Render the template over a JSON list of :class:`Message`, and one of tools in OpenAI's shape.

        Raises:
            TextFailed: no template, not such a list, an unknown role, too long as :meth:`encode_text`, or a template
                that fails.
        """
        template, messages = self._required_template, _parse_messages(raw_messages)
        self._check_length(max_tokens, *(message.content for message in messages))
        given = [[message.fields() for message in messages], _tools.decode(raw_tools)]
        mark = _unused_mark(_texts(given))
        defused = self._all_defused(given, mark)
        try:
            prompt = template.render(*defused)
        except TemplateFailed as error:
            raise TextFailed(Code.TEMPLATE_FAILED, str(error)) from error
        self._check_length(None, prompt)
        return RenderedChat(prompt, mark if defused != given else None)

    def encode_chat(self, chat: "RenderedChat") -> list[int]:
        """Return the ids of a rendered chat.

        Raises:
            TextFailed: nothing to encode.
        """
        self._library.encode_special_tokens = False
        if chat.mark is None:
            return _some(list(self._library.encode_batch_fast([chat.prompt], add_special_tokens=False)[0].ids))
        found = self._library.encode_batch([chat.prompt], add_special_tokens=False)[0]
        token_ids: list[int] = []
        end = 0
        for number, (begin, past) in zip(found.ids, found.offsets, strict=True):
            if number in self._forbidden:
                token_ids += self._between(chat.prompt[end:begin], chat.mark)
                token_ids.append(number)
                end = past
        return _some(token_ids + self._between(chat.prompt[end:], chat.mark))

    def _all_defused(self, value: Any, mark: str) -> Any:  # noqa: ANN401 - the value of a JSON text has any type
        """Return ``value`` with every text in it, keys too, as :meth:`_defused`."""
        if isinstance(value, str):
            return self._defused(value, mark)
        if isinstance(value, dict):
            return {self._defused(key, mark): self._all_defused(part, mark) for key, part in value.items()}
        return [self._all_defused(part, mark) for part in value] if isinstance(value, list) else value

    def _defused(self, content: str, mark: str) -> str:
        # Nearly every message is cleared by these few calls; of a chat of thousands, defuse() would take seconds.
        if (
            content.endswith(self._specials_begin)
            or content.startswith(self._specials_end)
            or any(special in content for special in self._specials)
        ):
            return defuse(content, self._specials, mark)
        return content

    def _check_length(self, max_tokens: int | None, *texts: str) -> None:
        """Refuse what is too long before anything is done with it: a prompt holds up those that wait behind it.

        A token stands for so many bytes at most, so a text of more than that for each token cannot fit; nor can more
        messages than tokens.
        """
        length = sum(map(len, texts))
        if length > MAX_TEXT_CHARS:
            raise TextFailed(
                Code.INVALID_PARAMETER, f"The prompt has {length} characters, the limit is {MAX_TEXT_CHARS} characters."
            )
        if max_tokens is None:
            return
        size_bytes = sum(len(text.encode()) for text in texts)
        if len(texts) > max_tokens or size_bytes > max_tokens * self._longest_token_bytes:
            what = f"{len(texts)} messages" if len(texts) > max_tokens else f"{size_bytes} bytes"
            raise TextFailed(
                Code.CONTEXT_LENGTH_EXCEEDED,
                f"the prompt has {what}, more than fit the model's context of {max_tokens} tokens; shorten the prompt",
            )

    def _between(self, text: str, mark: str) -> list[int]:
        unmarked = text.replace(mark, "")
        return self._encode_plain(unmarked, framed=False) if unmarked else []

    def _encode_plain(self, text: str, *, framed: bool) -> list[int]:
        """Encode text in which nothing is a control token; ``framed`` lets the post-processor add its own."""
        self._library.encode_special_tokens = True
        encoding = self._library.encode_batch_fast([text], add_special_tokens=framed)[0]
        token_ids = list(encoding.ids)
        if not self._forbidden.isdisjoint(token_ids):
            # Only a vocabulary built for it gets here: one whose merges spell a control token.
            pairs = zip(token_ids, encoding.special_tokens_mask, strict=True)
            if any(number in self._forbidden and not added for number, added in pairs):
                raise TextFailed(Code.TOKENIZER_FAILED, "The text would become a control token of this model.")
        return token_ids


class RenderedChat(msgspec.Struct, frozen=True):
    """A prompt out of a template, and the mark inside it, where there is one."""

    prompt: str
    mark: str | None


def defuse(content: str, specials: Sequence[str], mark: str) -> str:
    """Return ``content`` with ``mark`` inside everything that is, ends like or begins like one of ``specials``.

    A tail that begins a special token, or a head that ends one, could be completed by what the template puts beside it.
    Marks stand after each character of a tail or spelling and before each of a head, never outside them.
    """
    places: set[int] = set()  # a mark goes before the character at this place
    for special in specials:
        start = content.find(special)
        while start >= 0:
            places.update(range(start + 1, start + len(special)))
            if len(special) == 1:
                places.add(start)
            start = content.find(special, start + 1)
        for length in range(1, min(len(special) - 1, len(content)) + 1):
            if content.endswith(special[:length]):
                places.update(range(len(content) - length + 1, len(content) + 1))
            if content.startswith(special[-length:]):
                places.update(range(length))
    if not places:
        return content
    marked = [mark + character if place in places else character for place, character in enumerate(content)]
    return "".join(marked) + (mark if len(content) in places else "")


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - the value of a JSON text has any type
    """Yield every text in ``value``, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value:
            yield from _texts(part)
        if isinstance(value, dict):
            yield from _texts(list(value.values()))


def _unused_mark(contents: Iterable[str]) -> str:
    used = set().union(*contents)
    return next(mark for mark in map(chr, _MARKS) if mark not in used)


def _parse_messages(raw: bytes) -> list[Message]:
    try:
        messages = _messages.decode(raw)
    except msgspec.DecodeError as error:
        raise TextFailed(Code.INVALID_PARAMETER, f"messages: {error}") from error
    for message in messages:
        if message.role not in ROLES:
            known = ", ".join(ROLES)
            raise TextFailed(Code.INVALID_PARAMETER, f"The role {message.role[:40]!r} is not known; known are {known}.")
    return messages


def _some(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise TextFailed(Code.INVALID_PARAMETER, "The prompt is empty.")
    return token_ids


def _read(path: Path, max_bytes: int) -> bytes | None:
    """Return the bytes of a file, None when there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TextFailed(Code.TOKENIZER_FAILED, f"cannot read {path.name}: {error.strerror}") from error
    if len(raw) > max_bytes:
        raise TextFailed(Code.TOKENIZER_FAILED, f"{path.name} is longer than {max_bytes} bytes")
    return raw


def load_template(model_dir: Path, cpu_s: float = RENDER_CPU_S) -> ChatTemplate | None:
    """Return the chat template of a folder, None where there is none.

    Args:
        model_dir: the folder.
        cpu_s: processor time that compiling it and each rendering may take.

    Raises:
        TextFailed: the template, or the files that name it, cannot be used.
    """
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        raw = _read(model_dir / name, MAX_SETTINGS_BYTES)
        if raw is not None:
            try:
                settings |= strict_json.loads_object(raw, MAX_SETTINGS_BYTES)
            except strict_json.StrictJsonError as error:
                raise TextFailed(Code.TOKENIZER_FAILED, f"{name}: {error}") from error
    try:
        source = template_source(_read(model_dir / "chat_template.jinja", MAX_TEMPLATE_BYTES), settings)
        return None if source is None else ChatTemplate(source, named_tokens(settings), cpu_s)
    except TemplateFailed as error:
        raise TextFailed(Code.TEMPLATE_FAILED, str(error)) from error
