"""Models and their versions."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.listing import list_of, listed
from controlplane.registry import selectors


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
    """An immutable version of a model."""

    id = serializers.CharField()
    model_id = serializers.CharField()
    model = serializers.CharField(source="model.name")
    number = serializers.IntegerField()
    digest = serializers.CharField()
    state = serializers.CharField()
    context_tokens = serializers.IntegerField()
    num_parameters = serializers.IntegerField()
    weight_bytes = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    has_chat_template = serializers.BooleanField()
    files = FileSerializer(many=True, source="files.all")
    created_at = serializers.DateTimeField()


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

    @extend_schema(operation_id="get_version", responses=VersionSerializer)
    def get(self, request: Request, version_id: str) -> Response:
        """Return the version with its files."""
        return Response(VersionSerializer(selectors.get_version(actor=self.actor, version_id=version_id)).data)
