"""The catalog in force, and what is asked of it for every request, worked out once per tenant and snapshot.

What applications call is a deployment's name, or, of one version of it alone, ``name@<number>`` or ``name@<alias>``:
that of an arm that takes traffic, or of a candidate that is kept READY before it does.
"""

import msgspec

from dataplane.contracts import arms, headers
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry
from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.auth import Caller

_MAX_NAMED = 20
_PAUSED_RETRY_S = 30.0
_CHANGED_RETRY_S = 1.0


class ModelCard(msgspec.Struct, frozen=True):
    """OpenAI's model object. ``created`` in Unix seconds."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class ModelList(msgspec.Struct, frozen=True):
    """OpenAI's list of models."""

    data: tuple[ModelCard, ...]
    object: str = "list"


class Snapshot:
    """One catalog with its answers; never changes, a newer catalog makes a new one."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._names: dict[str, dict[str, DeploymentEntry]] = {}

    def models(self, caller: Caller) -> dict[str, DeploymentEntry]:
        """Return what ``caller`` may call, by name, paused ones included."""
        tenant_id = caller.tenant.id
        if tenant_id not in self._names:
            self._names[tenant_id] = contract.callable_names(self.catalog, tenant_id)
        allowed = caller.key.deployment_ids
        if allowed is None:
            return self._names[tenant_id]
        return {name: entry for name, entry in self._names[tenant_id].items() if entry.id in allowed}

    def called(self, caller: Caller, name: str, arm_name: str | None = None) -> tuple[DeploymentEntry, Arm | None]:
        """Return the deployment that ``caller`` means by ``name``, and the arm where that or ``arm_name`` names one.

        Raises:
            ApiError: MODEL_NOT_FOUND, in the same words for a name that does not exist and one of another tenant, or
                for an arm that is not there; MODEL_PAUSED for one that takes no traffic; INVALID_PARAMETER where the
                name is a version of another arm.
        """
        models = self.models(caller)
        base, at, version = name.partition("@")
        found = models.get(base)
        if found is None:
            raise ApiError(Code.MODEL_NOT_FOUND, _not_found(name, sorted(models)), param="model")
        versions = self._versions(found)
        if at and version not in versions:
            names = [f"{base}@{known}" for known in versions]
            raise ApiError(Code.MODEL_NOT_FOUND, _not_found(name, [base, *names]), param="model")
        if not found.active:
            raise _paused(found)
        by_version = versions[version] if at else None
        if arm_name is None:
            return found, by_version
        by_name = next((arm for arm in _callable(found) if arm.name == arm_name), None)
        if by_name is None:
            names = [base, *(f"{base}@{known}" for known in versions)]
            raise ApiError(Code.MODEL_NOT_FOUND, _not_found(name, names, arm_name), param=headers.USE_ARM)
        if by_version is not None and by_version is not by_name:
            raise ApiError(
                Code.INVALID_PARAMETER,
                f"'{name}' is a version of the arm '{by_version.name}', and the header '{headers.USE_ARM}' says "
                f"'{arm_name}'. Leave one of the two out.",
                param=headers.USE_ARM,
            )
        return found, by_name

    def withdrawn(self, deployment_id: str, version_id: str) -> ApiError | None:
        """Return why nobody can wait for a version of a deployment any longer, or None. Of grants it says nothing."""
        deployment = self.catalog.deployments.get(deployment_id)
        if deployment is None:
            return ApiError(Code.MODEL_NOT_FOUND, "This model was deleted.", param="model")
        if not deployment.active:
            return _paused(deployment)
        if all(arm.version_id != version_id for arm in _callable(deployment)):
            return ApiError(
                Code.MODEL_COLD, "This model went over to another version. Try again.", retry_after_s=_CHANGED_RETRY_S
            )
        return None

    def weight(self, deployment_id: str, version_id: str) -> int:
        """Return the per cent of a deployment's traffic that a version takes."""
        deployment = self.catalog.deployments.get(deployment_id)
        known = deployment.arms if deployment else ()
        return sum(arm.weight for arm in known if arm.version_id == version_id)

    def _versions(self, deployment: DeploymentEntry) -> dict[str, Arm]:
        """Return the arms of a deployment by what may stand behind the ``@``: numbers first, then aliases."""
        known = [(arm, self.catalog.versions.get(arm.version_id)) for arm in _callable(deployment)]
        versions: dict[str, Arm] = {}
        for arm, version in known:
            if version is not None:
                versions.setdefault(str(version.number), arm)
        for arm, version in known:
            for alias in version.aliases if version is not None else ():
                versions.setdefault(alias, arm)
        return versions

    def cards(self, caller: Caller) -> tuple[ModelCard, ...]:
        """Return the model objects of what ``caller`` may call now, by name, each with its versions behind it."""
        return tuple(
            card
            for name, entry in sorted(self.models(caller).items())
            if entry.active
            for card in (
                self._card(name, entry, None),
                *(self._card(f"{name}@{version}", entry, arm) for version, arm in self._versions(entry).items()),
            )
        )

    def card(self, caller: Caller, name: str) -> ModelCard:
        """Return one model object. Raises as :meth:`called`."""
        return self._card(name, *self.called(caller, name))

    def _card(self, name: str, deployment: DeploymentEntry, arm: Arm | None) -> ModelCard:
        shown = arm or next(iter(deployment.arms), None)
        version = self.catalog.versions.get(shown.version_id) if shown else None
        owner = self.catalog.tenants.get(deployment.tenant_id)
        return ModelCard(
            id=name,
            created=version.created_at_ms // 1000 if version else 0,
            owned_by=owner.name if owner else deployment.tenant_id,
        )

    def context_tokens(self, deployment: DeploymentEntry, version_id: str, tenant_id: str) -> int:
        """Return the most tokens a request of a tenant can come to: model, deployment and the tenant's cap allow."""
        version = self.catalog.versions.get(version_id)
        share = deployment.grants.get(tenant_id)
        bounds = (
            version.context_tokens if version else None,
            deployment.engine.max_model_len,
            share.cap_tokens if share else None,
        )
        return min((bound for bound in bounds if bound is not None), default=0)


def _callable(deployment: DeploymentEntry) -> list[Arm]:
    return [arm for arm in deployment.arms if arms.may_be_called(arm)]


def _paused(deployment: DeploymentEntry) -> ApiError:
    return ApiError(
        Code.MODEL_PAUSED, f"The model '{deployment.name}' is paused by its owner.", retry_after_s=_PAUSED_RETRY_S
    )


def _not_found(name: str, names: list[str], arm_name: str = "") -> str:
    shown = name if len(name) <= 64 else name[:61] + "..."
    arm = f" with an arm '{arm_name}'" if arm_name else ""
    what = f"There is no model '{shown}'{arm} for this API key"
    if not names:
        return f"{what}: it may call none."
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{what}. It may call: {', '.join(names[:_MAX_NAMED])}{more}."
