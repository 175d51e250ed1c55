"""The steps of a validation, in order. Each does its work, passes its failpoint, and commits once."""

import msgspec
from msgspec.structs import replace

from controlplane.registry import blobs, cards
from controlplane.registry.devices import devices
from controlplane.registry.entries import version_entry, version_files
from controlplane.registry.fit import Fit, fits, least_kv_tokens, shortage, summary
from controlplane.registry.inspection import inspect
from controlplane.registry.models import WHOLE, ModelVersion, StepState, UploadFile
from controlplane.registry.validation import trial
from controlplane.registry.validation.assembly import Incomplete, assemble, claim, file_entries
from controlplane.registry.validation.attempt import Attempt, Refused, refused
from controlplane.registry.validation.checklist import INSPECTED, Standing, line_of, standings
from dataplane.contracts import failpoints, memory
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.replica import TrialReport, TrialRequest, TrialState
from dataplane.contracts.verdict import Check, CheckState, Progress, Verdict, version_digest

_MIB = 1024 * 1024
_MEND_AGAIN = "Save the model again with save_pretrained, and upload it as a new version."
_MEND_PARTS = "Upload it again: it changed on its way, or was changed while it was read."
_MEND_SMALLER = "Choose a smaller model, quantise it, or ask the platform for a device with more memory."
_MEND_SMOKE = "Try the model with transformers; where it works there, tell the platform this version's id."
_TRIAL_S = 300.0
_TRIAL_BYTES_PER_S = 20_000_000
"""How long a trial may take: this, and what converting and loading the weights takes on a slow disk."""
_TRIAL_BLOCK_SIZE = 8


def run(attempt: Attempt) -> None:
    """Take every step that is not done yet.

    Raises:
        Refused: the version cannot be served.
        Overtaken: it is not being validated any more.
        LeaseLostError: another worker has the job.
    """
    version = attempt.read()
    if version.digest is None:
        _put_together(attempt, version)
        version = attempt.read()
    with attempt.commit():
        refuse_twin(version)  # now, before anything takes long; and again when it is published
    if version.config is None:
        _inspect(attempt, version)
        version = attempt.read()
    passed = {check.name for check in version.checks.all() if check.state == StepState.PASSED}
    if "memory" not in passed:
        _plan_memory(attempt, version)
    if "smoke" not in passed:
        _try(attempt, version)


def refuse_twin(version: ModelVersion) -> None:
    """Ask in the open transaction whether the model has another version of this content.

    Raises:
        Refused: it has.
    """
    same = ModelVersion.objects.filter(
        model_id=version.model_id, digest=version.digest, state__in=WHOLE, deleted_at=None
    )
    twin = same.exclude(pk=version.pk).first()
    if twin is not None:
        raise refused("publish", f"Version {twin.number} has exactly this content.", f"Use version {twin.number}.")


# --- files


def _put_together(attempt: Attempt, version: ModelVersion) -> None:
    attempt.begin("files")
    files = list(version.upload_files.all())

    def record(file: UploadFile) -> None:
        with attempt.commit():
            claim(file)

    try:
        assemble(files, store=attempt.store, record=record, beat=attempt.beat)
    except Incomplete as error:
        raise refused("files", f"{error.name}: {error}.", _MEND_PARTS) from error
    listed = file_entries(files)
    with attempt.commit() as held:
        blobs.refer(version=held, files=listed, store=attempt.store)
        held.digest = version_digest(listed)
        held.size_bytes = sum(file.size_bytes for file in listed)
        held.save(update_fields=["digest", "size_bytes"])
        attempt.mark("files", StepState.PASSED)


# --- what the child says


def _inspect(attempt: Attempt, version: ModelVersion) -> None:
    attempt.begin(INSPECTED[0].name)
    for file in version.files.all():
        attempt.store.fetch(file.artifact.sha256, attempt.folder / file.name)
        attempt.beat()
    verdict = inspect(attempt.folder, tell=_News(attempt).tell)
    _require_accepted(verdict)
    if verdict.files != version_files(version):
        raise refused("digests", "The files are not those that arrived.", _MEND_PARTS)
    card = cards.to_html(verdict.card.text)
    failpoints.hit("registry.validating.inspect")
    config = verdict.config
    assert config is not None  # noqa: S101 - an accepted verdict has one, and its border has checked that
    with attempt.commit() as held:
        held.config = msgspec.to_builtins(config)
        held.context_tokens = config.context_tokens
        held.num_parameters = verdict.num_parameters
        held.weight_bytes = verdict.weight_bytes
        held.has_chat_template = verdict.has_chat_template
        held.card, held.licence = card, verdict.card.license
        held.save()
        for line in INSPECTED:
            attempt.mark(line.name, StepState.PASSED)


class _News:
    """Shows the child's progress on the checklist while it works; the verdict at its end is what counts."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ended: list[Check] = []
        self._begun = {INSPECTED[0].name}

    def tell(self, progress: Progress | None) -> None:
        line = line_of(progress.check) if progress is not None else None
        if progress is None or line is None:
            self._attempt.beat()
        elif progress.ended is not None:
            self._ended.append(progress.ended)
            self._end(line.name)
        elif line.name not in self._begun:
            self._begun.add(line.name)
            self._attempt.begin(line.name)
        else:
            self._attempt.beat()

    def _end(self, name: str) -> None:
        for standing in standings(self._ended):
            if standing.line.name == name and standing.over:
                with self._attempt.commit():
                    self._attempt.mark(name, StepState(standing.state), standing.reason, standing.mend)


def _require_accepted(verdict: Verdict) -> None:
    found = standings(verdict.checks)
    passed = [standing.line for standing in found if standing.state is CheckState.PASSED]
    if not verdict.refusals and passed == list(INSPECTED):
        return
    if not any(standing.state is CheckState.FAILED for standing in found):
        reason, mend = _first_refusal(verdict)
        found = [Standing(INSPECTED[0], True, CheckState.FAILED, reason, mend)]
    raise Refused(*found)


def _first_refusal(verdict: Verdict) -> tuple[str, str]:
    for refusal in verdict.refusals:
        return f"{refusal.file or 'the folder'}: {refusal.reason}", refusal.mend
    return "The reader did not finish its checks.", _MEND_AGAIN


# --- memory and smoke


def _plan_memory(attempt: Attempt, version: ModelVersion) -> None:
    attempt.begin("memory")
    found = _fits(version)
    failpoints.hit("registry.validating.memory")
    with attempt.commit():
        attempt.mark("memory", StepState.PASSED, summary(found))


def _fits(version: ModelVersion) -> list[Fit]:
    config, at_hand = version.checked_config, devices()
    found = fits(config, at_hand)
    if not found:
        raise refused("memory", shortage(config, at_hand), _MEND_SMALLER)
    return found


def _try(attempt: Attempt, version: ModelVersion) -> None:
    attempt.begin("smoke")
    request = TrialRequest(version=version_entry(version), engine=_engine(version))
    patience_s = _TRIAL_S + (version.size_bytes or 0) / _TRIAL_BYTES_PER_S
    report = trial.run(request, patience_s=patience_s, tell=lambda _: attempt.beat())
    if report.state is not TrialState.PASSED:
        raise refused("smoke", f"It did not generate: {report.cause or 'no cause was given'}.", _MEND_SMOKE)
    failpoints.hit("registry.validating.smoke")
    with attempt.commit():
        attempt.mark("smoke", StepState.PASSED, _spoken(report))


def _engine(version: ModelVersion) -> EngineSettings:
    """The smallest replica that says whether the model works."""
    config, best = version.checked_config, _fits(version)[0]
    tokens = least_kv_tokens(config)
    engine = EngineSettings(
        dtype=best.dtype,
        device=best.device.kind,
        max_model_len=tokens,
        max_num_seqs=1,
        block_size=_TRIAL_BLOCK_SIZE,
        prefix_cache=False,
    )
    blocks = -(-tokens // _TRIAL_BLOCK_SIZE) + 2
    return replace(engine, kv_memory_mb=-(-blocks * memory.block_bytes(config, engine) // _MIB))


def _spoken(report: TrialReport) -> str:
    return f"First token after {report.first_token_ms:,} ms." if report.first_token_ms else ""
