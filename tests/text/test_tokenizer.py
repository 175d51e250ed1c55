import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataplane.contracts.errors import Code
from dataplane.text.tokenizer import ModelTokenizer, TextFailed, defuse
from tests.text import tokenizer_files
from tests.text.tokenizer_files import BUNDLED, SPECIALS

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "byte-level": tokenizer_files.byte_level,
    "llama-2": tokenizer_files.llama_2,
}
SPELLINGS = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|>", "<s>", "</s>", "</", "s>", "a", " ", "\n", "é"]
CONTENTS = st.lists(st.sampled_from(SPELLINGS), max_size=6).map("".join)
ROLES = st.sampled_from(["system", "user", "assistant"])
CHATS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}), min_size=1, max_size=4)

Chat = list[dict[str, str]]


class Model:
    """Our tokenizer of a folder beside the library's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = ModelTokenizer(folder)
        self.oracle = Tokenizer.from_file(str(folder / "tokenizer.json"))
        added = self.oracle.get_added_tokens_decoder()
        self.special_ids = {number for number, token in added.items() if token.special}
        self.unknown_id = self.oracle.token_to_id("<unk>")

    def chat(self, messages: Chat) -> list[int]:
        return self.ours.encode_chat(self.ours.render_chat(json.dumps(messages).encode()))

    def control(self, token_ids: list[int]) -> list[int]:
        return [number for number in token_ids if number in self.special_ids and number != self.unknown_id]


@pytest.fixture(scope="module", params=FOLDERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(FOLDERS[request.param](tmp_path_factory.mktemp("model")))


@given(chat=CHATS)
def test_only_the_template_writes_control_tokens(model: Model, chat: Chat) -> None:
    innocent = [{**message, "content": "a"} for message in chat]
    assert model.control(model.chat(chat)) == model.control(model.chat(innocent))


@given(text=st.text(min_size=1) | CONTENTS.filter(bool))
def test_a_text_that_fits_is_never_refused_for_its_length(model: Model, text: str) -> None:
    try:
        token_ids = model.ours.encode_text(text)
    except TextFailed:
        return
    if model.unknown_id not in token_ids:  # an unknown token may stand for any length
        assert model.ours.encode_text(text, max_tokens=len(token_ids)) == token_ids


@given(chat=CHATS)
def test_the_tokens_of_a_chat_spell_the_rendered_prompt(model: Model, chat: Chat) -> None:
    rendered = model.ours.render_chat(json.dumps(chat).encode())
    prompt = rendered.prompt.replace(rendered.mark or "\0", "")
    spelled = model.oracle.decode(model.ours.encode_chat(rendered), skip_special_tokens=False)
    # The Llama 2 kind puts a space in front of each text between control tokens: it does so for every chat.
    assert spelled.replace(" ", "") == prompt.replace(" ", "")


@given(text=CONTENTS.filter(bool))
def test_a_plain_prompt_cannot_write_a_control_token(model: Model, text: str) -> None:
    framed = model.ours.encode_text(text)
    begin = model.oracle.encode("a").ids[:-1] if model.unknown_id == 0 else []
    assert model.control(framed) == model.control(begin)
    assert model.oracle.decode(framed).strip() == text.strip() or "é" in text


@given(chat=st.lists(st.fixed_dictionaries({"role": ROLES, "content": st.text("abc é\n")}), min_size=1, max_size=3))
def test_an_ordinary_chat_is_encoded_as_transformers_does(model: Model, chat: Chat) -> None:
    prompt = model.ours.render_chat(json.dumps(chat).encode()).prompt
    assert model.chat(chat) == model.oracle.encode(prompt, add_special_tokens=False).ids


@given(CONTENTS, st.lists(st.sampled_from(["<s>", "</s>", "aab", "ab", "<|im_end|>"]), max_size=3), CONTENTS, CONTENTS)
def test_nothing_beside_a_defused_text_completes_a_special_token(
    content: str, specials: list[str], before: str, after: str
) -> None:
    defused = defuse(content, specials, "\0")
    assert defused.replace("\0", "") == content
    left, right = defuse(before, specials, "\0"), defuse(after, specials, "\0")
    assert not any(special in left + defused + right for special in specials)
    for special in specials:
        for length in range(1, len(special)):  # a template may write any part of it beside the text
            assert special not in special[:length] + defused
            assert special not in defused + special[-length:]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", Code.INVALID_PARAMETER),
        (b"{}", Code.INVALID_PARAMETER),
        (b"[{}]", Code.INVALID_PARAMETER),
        (b'[{"role": "user"}]', Code.INVALID_PARAMETER),
        (b'[{"role": "user", "content": 1}]', Code.INVALID_PARAMETER),
        (b'[{"role": "user", "content": "a", "weight": "x"}]', Code.INVALID_PARAMETER),
        (b'[{"role": "endoftext", "content": "a"}]', Code.INVALID_PARAMETER),
        (b'[{"role": "user", "content": "\\ud800"}]', Code.INVALID_PARAMETER),
        (json.dumps([{"role": "user", "content": "a" * (4 * 1024 * 1024 + 1)}]).encode(), Code.INVALID_PARAMETER),
    ],
    ids=range(9),
)
def test_messages_of_another_form_are_refused(model: Model, raw: bytes, code: Code) -> None:
    with pytest.raises(TextFailed) as caught:
        model.ours.render_chat(raw)
    assert caught.value.code is code


def test_a_model_without_a_template_says_what_to_call(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").unlink()
    tokenizer = ModelTokenizer(folder)
    with pytest.raises(TextFailed, match="/v1/completions"):
        tokenizer.render_chat(b"[]")


def test_the_template_may_be_in_the_settings(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for template in (
        "{{ eos_token }}",
        [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ eos_token }}"}],
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
        tokenizer = ModelTokenizer(folder)
        assert tokenizer.encode_chat(tokenizer.render_chat(b"[]")) == [2]


@pytest.mark.parametrize("template", [7, [], [{"name": "tool_use", "template": "x"}], {"default": "x"}])
def test_settings_without_a_usable_template_are_refused(tmp_path: Path, template: object) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(TextFailed):
        ModelTokenizer(folder)


def test_a_vocabulary_that_spells_a_control_token_is_caught(tmp_path: Path) -> None:
    """Merges can make the token of a whole word: the text "</s>" would be the end of the text."""
    content = tokenizer_files.llama_2_json()
    words = ["</", "</s"]
    content["model"]["vocab"] |= {word: len(content["model"]["vocab"]) + number for number, word in enumerate(words)}
    content["model"]["merges"] += [["<", "/"], ["</", "s"], ["</s", ">"]]
    folder = tokenizer_files.llama_2(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TextFailed, match="control token"):
        ModelTokenizer(folder).encode_text("a</s>")


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TextFailed, match="empty"):
        ModelTokenizer(tokenizer_files.byte_level(tmp_path)).encode_text("")


def test_the_bundled_model_encodes_as_transformers_does() -> None:
    if not (BUNDLED / "tokenizer.json").exists():
        return
    import transformers

    theirs, ours = transformers.AutoTokenizer.from_pretrained(BUNDLED), ModelTokenizer(BUNDLED)
    for text in ("Hello world", "In 2024: 31415 🙂 naïve\n\n\tx=10**9", "漢字かな交じり文", "a" * 1000, " \n \n"):
        assert ours.encode_text(text) == theirs(text)["input_ids"]
        chat = [{"role": "user", "content": text}]
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert ours.encode_chat(ours.render_chat(json.dumps(chat).encode())) == expected
    assert len(ours.encode_text(SPECIALS[2])) > 1
