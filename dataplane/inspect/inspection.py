"""The checks of a model folder, in order. Each goes on where it can, so that the list of refusals is whole."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dataplane.contracts import strict_json
from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.model_config import ConfigError, ModelConfig, add_generation_config, parse_config
from dataplane.contracts.verdict import Check, CheckState, Verdict
from dataplane.inspect import checkpoint, names
from dataplane.inspect.folder import File, open_files
from dataplane.inspect.refusals import Refusals, Refused
from dataplane.text.template import MAX_TEMPLATE_BYTES, TemplateFailed, check_syntax
from dataplane.text.template_source import MAX_SETTINGS_BYTES, SETTINGS, template_source
from dataplane.text.tokenizer_components import TokenizerRefused
from dataplane.text.tokenizer_schema import MAX_FILE_BYTES, read_vocabulary

_MAX_SMALL_JSON_BYTES = 256 * 1024
_MAX_DOCUMENT_BYTES = 1024 * 1024


def inspect(path: str) -> Verdict:
    """Judge the folder at ``path``.

    Raises:
        FolderError: it is not a folder, or cannot be read.
    """
    return _Inspection().run(path)


class _Inspection:
    def __init__(self) -> None:
        self.refusals = Refusals()
        self.checks: list[Check] = []

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """One line of the checklist: failed when the body adds a refusal."""
        before = len(self.refusals)
        yield
        state = CheckState.PASSED if len(self.refusals) == before else CheckState.FAILED
        self.checks.append(Check(name, state))

    def skip(self, name: str) -> None:
        self.checks.append(Check(name, CheckState.NOT_RUN))

    def run(self, path: str) -> Verdict:
        with self.check("files"):
            files = open_files(path, self.refusals)
            for name in names.REQUIRED:
                if name not in files and not self.refusals.about(name):
                    self.refusals.add(name, "it is missing", "Give the folder that save_pretrained wrote.")
            self._check_documents(files)
        config = self._config(files)
        with self.check("weights"):
            tensors = checkpoint.read_weights(files, self.refusals)
        if config is None or self.checks[-1].state is not CheckState.PASSED:
            self.skip("tensors")
        else:
            with self.check("tensors"), self.refusals.of(""):
                checkpoint.check_tensors(config, tensors)
        self._check_tokenizer(files, config)
        has_template = self._check_template(files)
        listed = self._digests(files)
        stored = [tensor for file_tensors in tensors.values() for tensor in file_tensors.values()]
        return Verdict(
            refusals=self.refusals.all(),
            files=listed,
            config=config,
            num_parameters=sum(math.prod(tensor.shape) for tensor in stored),
            weight_bytes=sum(tensor.end - tensor.begin for tensor in stored),
            has_chat_template=has_template,
            checks=tuple(self.checks),
        )

    def _check_documents(self, files: Mapping[str, File]) -> None:
        for name in names.DOCUMENTS & files.keys():
            with self.refusals.of(name):
                _check_text(files[name], _MAX_DOCUMENT_BYTES)

    def _config(self, files: Mapping[str, File]) -> ModelConfig | None:
        if names.CONFIG not in files:
            self.skip("config")
            return None
        config: ModelConfig | None = None
        with self.check("config"):
            with self.refusals.of(names.CONFIG):
                raw = files[names.CONFIG].read_all(_MAX_SMALL_JSON_BYTES)
                config = _configured(lambda: parse_config(raw))
            generation = files.get(names.GENERATION_CONFIG)
            if config is not None and generation is not None:
                with self.refusals.of(names.GENERATION_CONFIG):
                    base, extra = config, generation.read_all(_MAX_SMALL_JSON_BYTES)
                    config = _configured(lambda: add_generation_config(base, extra))
        return config

    def _check_tokenizer(self, files: Mapping[str, File], config: ModelConfig | None) -> None:
        if names.TOKENIZER not in files:
            self.skip("tokenizer")
            return
        with self.check("tokenizer"), self.refusals.of(names.TOKENIZER):
            try:
                size = read_vocabulary(files[names.TOKENIZER].read_all(MAX_FILE_BYTES)).size
            except TokenizerRefused as error:
                raise Refused(error.message, error.mend) from error
            if config is not None and size > config.vocab_size:
                raise Refused(
                    f"it has token ids up to {size - 1}, the model has {config.vocab_size} embeddings",
                    "Give the tokenizer that belongs to the weights.",
                )

    def _check_template(self, files: Mapping[str, File]) -> bool:
        settings: dict[str, Any] = {}
        source: str | None = None
        with self.check("chat_template"):
            for name in SETTINGS:
                if name in files:
                    with self.refusals.of(name):
                        settings |= _settings(files[name])
            template = files.get(names.CHAT_TEMPLATE)
            with self.refusals.of(names.CHAT_TEMPLATE if template else names.TOKENIZER_CONFIG):
                try:
                    raw = None if template is None else template.read_all(MAX_TEMPLATE_BYTES)
                    source = template_source(raw, settings)
                    if source is not None:
                        check_syntax(source)
                except TemplateFailed as error:
                    raise Refused(str(error), "Give a chat template that transformers renders.") from error
        return source is not None

    def _digests(self, files: Mapping[str, File]) -> tuple[VersionFile, ...]:
        """The digest of each file; not of a folder that is refused already, since large files take minutes."""
        if self.refusals:
            self.skip("digests")
            return ()
        listed: list[VersionFile] = []
        with self.check("digests"):
            for name, file in sorted(files.items()):
                with self.refusals.of(name):
                    listed.append(VersionFile(name=name, sha256=file.sha256(), size_bytes=file.size_bytes))
        return tuple(listed)


def _configured(read: Callable[[], ModelConfig]) -> ModelConfig:
    try:
        return read()
    except ConfigError as error:
        raise Refused(str(error), error.mend) from error


def _settings(file: File) -> dict[str, Any]:
    try:
        settings = strict_json.loads_object(file.read_all(MAX_SETTINGS_BYTES), MAX_SETTINGS_BYTES)
    except strict_json.StrictJsonError as error:
        raise Refused(str(error), "Save the tokenizer again with save_pretrained.") from error
    if settings.get("auto_map") is not None:
        raise Refused("auto_map names code to run, and no code of a model folder is ever run", "Remove auto_map.")
    return settings


def _check_text(file: File, max_bytes: int) -> None:
    raw = file.read_all(max_bytes)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("it is not UTF-8 text", "Save it as UTF-8.") from error
    if "\0" in text:
        raise Refused("it has NUL characters, so it is not text", "Save it as UTF-8.")
