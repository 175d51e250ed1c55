"""Models and their versions."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, example, read
from controlplane.api.listing import list_of, listed
from controlplane.registry import lifecycle, selectors
from tenants.roles import Permission


class ModelSerializer(serializers.Serializer[Any]):
    """A model: a name with versions."""

    id = serializers.CharField()
    name = serializers.CharField()
    num_versions = serializers.IntegerField(help_text="Versions that are ready.")
    last_version_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class FileSerializer(serializers.Serializer[Any]):
    """A file of a version."""

    name = serializers.CharField()
    sha256 = serializers.CharField(source="artifact.sha256")
    size_bytes = serializers.IntegerField(source="artifact.size_bytes")


class VersionSerializer(serializers.Serializer[Any]):
    """A version of a model. What it holds is null until it is known, and does not change after that."""

    id = serializers.CharField()
    model_id = serializers.CharField()
    model = serializers.CharField(source="model.name")
    number = serializers.IntegerField()
    digest = serializers.CharField(allow_null=True)
    state = serializers.CharField(help_text="uploading, validating, ready, rejected or archived")
    context_tokens = serializers.IntegerField(allow_null=True)
    num_parameters = serializers.IntegerField(allow_null=True)
    weight_bytes = serializers.IntegerField(allow_null=True)
    size_bytes = serializers.IntegerField(allow_null=True)
    has_chat_template = serializers.BooleanField(allow_null=True)
    licence = serializers.CharField()
    aliases = serializers.SerializerMethodField()
    files = FileSerializer(many=True, source="files.all")
    created_at = serializers.DateTimeField()
    deleted_at = serializers.DateTimeField(allow_null=True)

    def get_aliases(self, version: Any) -> list[str]:  # noqa: ANN401 - a row; the API knows no models
        """Return the names that stand for the version."""
        return [alias.name for alias in version.aliases.all()]


class CheckSerializer(serializers.Serializer[Any]):
    """A line of a version's checklist."""

    name = serializers.CharField()
    title = serializers.CharField()
    state = serializers.CharField(help_text="pending, running, passed, failed or not_run")
    reason = serializers.CharField()
    mend = serializers.CharField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class RelatedVersionSerializer(serializers.Serializer[Any]):
    """A version that another came from, or that came from it."""

    id = serializers.CharField()
    model = serializers.CharField(source="model.name")
    number = serializers.IntegerField()


class VersionContextSerializer(serializers.Serializer[Any]):
    """A version's checklist, its card, where it came from, and what depends on it."""

    checks = CheckSerializer(many=True)
    card = serializers.CharField(help_text="The README as safe HTML.")
    dependents = serializers.ListField(child=serializers.CharField(), help_text="What keeps it from being deleted.")
    derived_from = RelatedVersionSerializer(source="version.derived_from", allow_null=True)
    derivation = serializers.CharField(source="version.derivation")
    derived = RelatedVersionSerializer(many=True)


class VersionDetailSerializer(VersionSerializer, VersionContextSerializer):
    """A version with everything that is known of it."""


class AliasSerializer(serializers.Serializer[Any]):
    """A name for a version: applications call `model@name`."""

    name = serializers.CharField()
    version_id = serializers.CharField()
    number = serializers.IntegerField(source="version.number")
    moved_at = serializers.DateTimeField()


@example({"version_id": "ver_01jde3j1cp0000000000000000"})
class NewAliasSerializer(ClosedSerializer):
    """What an alias shall stand for."""

    version_id = serializers.CharField(max_length=32)


class FieldChangeSerializer(serializers.Serializer[Any]):
    """A field with two values."""

    name = serializers.CharField()
    old = serializers.JSONField()
    new = serializers.JSONField()


class FileChangeSerializer(serializers.Serializer[Any]):
    """A file of either version."""

    name = serializers.CharField()
    part = serializers.CharField(help_text="weights, config, generation config, tokenizer or document")
    change = serializers.CharField(help_text="added, removed, changed or same")
    old_bytes = serializers.IntegerField(allow_null=True)
    new_bytes = serializers.IntegerField(allow_null=True)


class DifferenceSerializer(serializers.Serializer[Any]):
    """What differs between two versions."""

    config = FieldChangeSerializer(many=True)
    counts = FieldChangeSerializer(many=True)
    files = FileChangeSerializer(many=True)


class ComparedSerializer(serializers.Serializer[Any]):
    """Which version to compare with."""

    since = serializers.CharField(max_length=32, help_text="The id of the version that changes are counted from.")


class ModelsView(TenantView):
    """The tenant's models."""

    @extend_schema(operation_id="list_models", responses=list_of(ModelSerializer))
    def get(self, request: Request) -> Response:
        """List the models by name."""
        return listed(ModelSerializer, selectors.list_models(actor=self.actor))


class ModelView(TenantView):
    """One model."""

    @extend_schema(operation_id="get_model", responses=ModelSerializer)
    def get(self, request: Request, model_id: str) -> Response:
        """Return the model."""
        return Response(ModelSerializer(selectors.get_model(actor=self.actor, model_id=model_id)).data)


class ModelVersionsView(TenantView):
    """The versions of one model."""

    @extend_schema(operation_id="list_model_versions", responses=list_of(VersionSerializer))
    def get(self, request: Request, model_id: str) -> Response:
        """List the model's versions, newest first."""
        selectors.get_model(actor=self.actor, model_id=model_id)
        return listed(VersionSerializer, selectors.list_versions(actor=self.actor, model_id=model_id))


class VersionView(TenantView):
    """One version."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="get_version", responses=VersionDetailSerializer)
    def get(self, request: Request, version_id: str) -> Response:
        """Return the version with its files and its checklist; a deleted one has `deleted_at`."""
        detail = selectors.get_version_detail(actor=self.actor, version_id=version_id)
        return Response(VersionSerializer(detail.version).data | VersionContextSerializer(detail).data)

    @extend_schema(operation_id="delete_version", responses={204: None})
    def delete(self, request: Request, version_id: str) -> Response:
        """End the version for good. Refused while a deployment or an alias uses it."""
        lifecycle.delete_version(actor=self.actor, version_id=version_id)
        return Response(status=204)


class ArchiveVersionView(TenantView):
    """The end of a version's use for new things."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="archive_version", request=None, responses=VersionSerializer)
    def post(self, request: Request, version_id: str) -> Response:
        """Archive the version: what serves it goes on, nothing new is made of it."""
        lifecycle.archive_version(actor=self.actor, version_id=version_id)
        return Response(VersionSerializer(selectors.get_version(actor=self.actor, version_id=version_id)).data)


class VersionDifferenceView(TenantView):
    """Two versions side by side."""

    takes = frozenset(ComparedSerializer().fields)

    @extend_schema(operation_id="compare_versions", parameters=[ComparedSerializer], responses=DifferenceSerializer)
    def get(self, request: Request, version_id: str) -> Response:
        """Return what changed from the version `since` to this one."""
        selectors.get_version(actor=self.actor, version_id=version_id)
        since = read(ComparedSerializer, request.query_params)["since"]
        found = selectors.compare_versions(actor=self.actor, old_id=since, new_id=version_id)
        return Response(DifferenceSerializer(found).data)


class AliasesView(TenantView):
    """The aliases of one model."""

    @extend_schema(operation_id="list_aliases", responses=list_of(AliasSerializer))
    def get(self, request: Request, model_id: str) -> Response:
        """List the aliases by name."""
        return listed(AliasSerializer, selectors.list_aliases(actor=self.actor, model_id=model_id))


class AliasView(TenantView):
    """One alias."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="set_alias", request=NewAliasSerializer, responses=AliasSerializer)
    def put(self, request: Request, model_id: str, alias: str) -> Response:
        """Let the alias stand for a version from now on, whatever it stood for before."""
        version_id = read(NewAliasSerializer, request.data)["version_id"]
        row = lifecycle.set_alias(actor=self.actor, model_id=model_id, name=alias, version_id=version_id)
        return Response(AliasSerializer(row).data)

    @extend_schema(operation_id="delete_alias", responses={204: None})
    def delete(self, request: Request, model_id: str, alias: str) -> Response:
        """Let the alias stand for nothing any more."""
        lifecycle.delete_alias(actor=self.actor, model_id=model_id, name=alias)
        return Response(status=204)
