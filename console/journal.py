"""What audit rows say in plain words: the deed of a verb, and what a change changed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tenants.chain import Json

DEEDS: dict[str, str] = {
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
    "tenant.create": "made the tenant",
    "tenant.resume": "resumed the tenant",
    "tenant.suspend": "suspended the tenant",
    "user.create": "made the account",
    "user.rename": "changed the name of",
    "version.import": "imported the version",
}
"""What somebody did, before the name of what it was done to."""

SUBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "keys": ("Keys", ("key.",)),
    "members": ("Members", ("member.", "user.")),
    "models": ("Models", ("model.", "version.", "upload.", "alias.")),
    "deployments": ("Deployments", ("deployment.", "grant.")),
    "limits": ("Limits and prices", ("quota.", "price.")),
    "tenants": ("Tenants", ("tenant.",)),
}
"""What the journal can be narrowed to: a label, and the verbs or beginnings of verbs that belong to it."""

_UNITS = {"_ms": "ms", "_s": "s", "_mb": "MiB", "_bytes": "bytes", "_tokens": "tokens", "_microusd": "micro-USD"}
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
    """Return the fields of two snapshots that differ, in the order in which they were written."""
    old = before if isinstance(before, Mapping) else {}
    new = after if isinstance(after, Mapping) else {}
    found = []
    for name in {**old, **new}:
        if name in old and name in new and old[name] == new[name]:
            continue
        unit = next((word for ending, word in _UNITS.items() if name.endswith(ending)), "")
        found.append(
            Change(
                field=_label(name),
                before=_said(old[name], unit) if name in old else "",
                after=_said(new[name], unit) if name in new else "",
            )
        )
    return found


def _label(name: str) -> str:
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    return name.removesuffix(ending).removesuffix("_id").replace("_", " ").capitalize()


def _said(value: Json, unit: str) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,} {unit}".strip()
    if isinstance(value, str):
        return value[:_MAX_CHARS]
    if isinstance(value, list):
        return ", ".join(_said(part, "") for part in value)[:_MAX_CHARS]
    return ", ".join(f"{_label(name).lower()} {_said(part, '')}" for name, part in value.items())[:_MAX_CHARS]
