"""What audit rows say in plain words: the deed of a verb, and what a change changed. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from console.idle import schedule_words, span
from dataplane.contracts.catalog import KeepWarm
from tenants.chain import Json

DEEDS: dict[str, str] = {
    "alias.delete": "deleted the alias",
    "alias.set": "moved the alias",
    "audit.verify": "asked to verify every chain:",
    "cache.rotate": "emptied the prefix cache on",
    "deployment.configure": "changed the settings of",
    "deployment.create": "deployed",
    "deployment.delete": "deleted the deployment",
    "deployment.pause": "paused the deployment",
    "deployment.resume": "resumed the deployment",
    "grant.remove": "took back the share of",
    "grant.set": "set the share of",
    "job.retry": "retried the job",
    "key.issue": "made the key",
    "key.playground": "opened the playground with the key",
    "key.revoke": "revoked the key",
    "key.roll": "rolled the key",
    "member.invite": "invited",
    "member.join": "joined as",
    "member.remove": "removed the member",
    "member.role": "changed the role of",
    "member.uninvite": "took back the invitation of",
    "price.set": "set the price of",
    "quota.set": "set",
    "quota.set_serving": "set, for deployments,",
    "quota.set_storage": "set, for storage,",
    "rollout.abort": "gave up the rollout",
    "rollout.advance": "moved on the rollout",
    "rollout.approve": "approved the rollout",
    "rollout.create": "drafted the rollout",
    "rollout.let_go": "let go of the version before the rollout",
    "rollout.pause": "paused the rollout",
    "rollout.resume": "resumed the rollout",
    "rollout.roll_back": "rolled back the rollout",
    "rollout.start": "started the rollout",
    "rollout.supersede": "ended for another one the rollout",
    "rollouts.freeze": "froze all rollouts:",
    "rollouts.unfreeze": "lifted the freeze of all rollouts:",
    "tenant.create": "made the tenant",
    "tenant.resume": "resumed the tenant",
    "tenant.suspend": "suspended the tenant",
    "upload.abort": "gave up the upload of",
    "upload.begin": "began to upload",
    "upload.complete": "uploaded",
    "user.create": "made the account",
    "user.rename": "changed the name of",
    "version.archive": "archived",
    "version.delete": "deleted",
    "version.import": "imported",
    "version.ready": "passed every check of",
    "version.reject": "rejected",
    "webhook.create": "made the webhook",
    "webhook.delete": "deleted the webhook",
    "webhook.disable": "switched off the webhook",
    "webhook.resend": "sent a message again to the webhook",
    "webhook.rotate": "rotated the secret of the webhook",
    "webhook.test": "sent a test to the webhook",
    "webhook.update": "changed the webhook",
}
"""What somebody did, before the name of what it was done to."""

SUBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "keys": ("Keys", ("key.",)),
    "members": ("Members", ("member.", "user.")),
    "models": ("Models", ("model.", "version.", "upload.", "alias.")),
    "deployments": ("Deployments", ("deployment.", "grant.", "cache.")),
    "rollouts": ("Rollouts", ("rollout.", "rollouts.")),
    "webhooks": ("Webhooks", ("webhook.",)),
    "limits": ("Limits and prices", ("quota.", "price.")),
    "tenants": ("Tenants", ("tenant.",)),
    "jobs": ("Jobs", ("job.", "audit.")),
}
"""What the journal can be narrowed to: a label, and the verbs or beginnings of verbs that belong to it."""

_UNITS = {"_ms": "ms", "_mb": "MiB", "_bytes": "bytes", "_tokens": "tokens", "_microusd": "micro-USD"}
_SECONDS = "_s"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")
_MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a change. ``before`` is empty where there was nothing, ``after`` where nothing is left."""

    field: str
    before: str
    after: str


def deed(verb: str) -> str:
    """Return what was done, in words that a target's name follows."""
    return DEEDS.get(verb) or verb.replace(".", " ").replace("_", " ")


def changes(before: Json, after: Json) -> list[Change]:
    """Return the fields of two snapshots that differ, in the order in which they were written.

    Of something new, what is none is not told: it would be most of it.
    """
    old = before if isinstance(before, Mapping) else {}
    new = after if isinstance(after, Mapping) else {}
    found = []
    for name in {**old, **new}:
        if name in old and name in new and old[name] == new[name]:
            continue
        was, became = (_said(name, side[name]) if name in side else "" for side in (old, new))
        if old or became != _NONE:
            found.append(Change(field=_label(name), before=was, after=became))
    return found


_NONE = "none"


def _label(name: str) -> str:
    ending = next((ending for ending in (*_UNITS, _SECONDS) if name.endswith(ending)), "")
    return name.removesuffix(ending).removesuffix("_id").removeprefix("is_").replace("_", " ").capitalize()


def _said(name: str, value: Json) -> str:
    return _value(name, value)[:_MAX_CHARS]


def _value(name: str, value: Json) -> str:
    if value is None or value in ("", [], {}):
        return _NONE
    if isinstance(value, list):
        if name == "schedules":
            return "; ".join(schedule_words(msgspec.convert(window, KeepWarm)) for window in value)
        return ", ".join(_value("", part) for part in value)
    if isinstance(value, dict):
        return "; ".join(f"{_label(part).lower()} {_value(part, inner)}" for part, inner in value.items())
    return _scalar(name, value)


def _scalar(name: str, value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"{value[:16].replace('T', ' ')} UTC" if _MOMENT.match(value) else value
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    return span(value) if name.endswith(_SECONDS) and not unit else f"{value:,} {unit}".strip()
