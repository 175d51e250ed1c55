"""The checks of a model folder, in order. Each goes on where it can, so that the list of refusals is whole."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataplane.contracts import memory, strict_json
from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.model_config import ConfigError, ModelConfig, add_generation_config, parse_config
from dataplane.contracts.verdict import ModelCard, Progress, Verdict
from dataplane.inspect import checkpoint, names
from dataplane.inspect.card import read_card, read_text
from dataplane.inspect.checklist import Checklist, Tell
from dataplane.inspect.checkpoint import Tensors
from dataplane.inspect.folder import File, open_files
from dataplane.inspect.refusals import Refusals, Refused
from dataplane.inspect.safetensors_header import Tensor
from dataplane.text.template import MAX_TEMPLATE_BYTES, TemplateFailed, check_syntax
from dataplane.text.template_source import MAX_SETTINGS_BYTES, SETTINGS, template_source
from dataplane.text.tokenizer_components import TokenizerRefused
from dataplane.text.tokenizer_schema import MAX_FILE_BYTES, read_vocabulary

_MAX_SMALL_JSON_BYTES = 256 * 1024
_MAX_DOCUMENT_BYTES = 1024 * 1024


def inspect(path: str, tell: Tell | None = None) -> Verdict:
    """Judge the folder at ``path``: everything but the trials, which need processes of their own.

    Args:
        path: the folder.
        tell: told of each check.

    Raises:
        FolderError: it is not a folder, or cannot be read.
    """
    return _Inspection(tell or _nobody).run(path)


def _nobody(_news: Progress) -> None:
    pass


class _Inspection:
    def __init__(self, tell: Tell) -> None:
        self.refusals = Refusals()
        self.checklist = Checklist(self.refusals, tell)

    def run(self, path: str) -> Verdict:
        with self.checklist.check("files"):
            files = open_files(path, self.refusals)
            for name in names.REQUIRED:
                if name not in files and not self.refusals.about(name):
                    self.refusals.add(name, "it is missing", "Give the folder that save_pretrained wrote.")
        try:
            return self._judged(files)
        finally:
            for file in files.values():
                os.close(file.fd)

    def _judged(self, files: Mapping[str, File]) -> Verdict:
        card = self._card(files)
        config = self._config(files)
        with self.checklist.check("weights"):
            tensors = checkpoint.read_weights(files, self.refusals)
        stored = [tensor for file_tensors in tensors.values() for tensor in file_tensors.values()]
        if config is not None and self.checklist.passed("weights"):
            with self.checklist.check("tensors"), self.refusals.of(""):
                checkpoint.check_tensors(config, tensors)
                stored = list(checkpoint.named_tensors(config, tensors).values())
        self._check_tokenizer(files, config)
        has_template = self._check_template(files)
        listed = self._contents(files, tensors)
        return Verdict(
            refusals=self.refusals.all(),
            files=listed,
            config=config,
            num_parameters=_num_parameters(config, stored),
            weight_bytes=sum(tensor.end - tensor.begin for tensor in stored),
            has_chat_template=has_template,
            checks=self.checklist.all(),
            weight_dtypes=tuple(sorted({_DTYPES[tensor.dtype] for tensor in stored})),
            card=card,
        )

    def _card(self, files: Mapping[str, File]) -> ModelCard:
        texts: dict[str, str] = {}
        with self.checklist.check("documents"):
            for name in sorted(names.DOCUMENTS & files.keys()):
                with self.refusals.of(name):
                    texts[name] = read_text(files[name].read_all(_MAX_DOCUMENT_BYTES))
        readme = next((texts[name] for name in names.READMES if name in texts), "")
        license_text = next((texts[name] for name in names.LICENSES if name in texts), "")
        return read_card(readme, license_text)

    def _config(self, files: Mapping[str, File]) -> ModelConfig | None:
        if names.CONFIG not in files:
            return None
        config: ModelConfig | None = None
        with self.checklist.check("config"):
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
            return
        with self.checklist.check("tokenizer"), self.refusals.of(names.TOKENIZER):
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
        with self.checklist.check("chat_template"):
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

    def _contents(self, files: Mapping[str, File], tensors: Mapping[str, Tensors]) -> tuple[VersionFile, ...]:
        """The digest of each file, and of weights a look at every element in the same reading.

        Not of a folder that is refused already, since large files take minutes.
        """
        if self.refusals:
            return ()
        from dataplane.inspect import finite  # noqa: PLC0415 - numpy, which no folder needs that is refused before

        digests: dict[str, str] = {}
        total_bytes = sum(files[name].size_bytes for name in tensors)
        with self.checklist.check("finite"):
            count = self.checklist.counter("finite", total_bytes)
            for name in sorted(tensors):
                with self.refusals.of(name):
                    digests[name] = finite.scan(files[name], tensors[name], count)
        if self.refusals:
            return ()
        with self.checklist.check("digests"):
            for name in files.keys() - tensors.keys():
                with self.refusals.of(name):
                    digests[name] = files[name].sha256()
        if self.refusals:
            return ()
        return tuple(VersionFile(name, digests[name], files[name].size_bytes) for name in sorted(files))


_DTYPES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "I8": "int8", "U8": "int4"}


def _num_parameters(config: ModelConfig | None, stored: Sequence[Tensor]) -> int:
    """What is stored, or stands for it: codes are packed, and scales are no parameters."""
    if config is not None and config.quantisation:
        return memory.num_parameters(config)
    return sum(math.prod(tensor.shape) for tensor in stored)


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
