"""Uploads of versions. Parts go to the address that each is given: to the object store itself, or to ours."""

from typing import Any, NoReturn

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.api.access import PlatformView, TenantView
from controlplane.api.inputs import ClosedSerializer, example, read
from controlplane.registry import storage, stores, uploads
from controlplane.registry.parts import MAX_FILE_BYTES, MAX_FILES, MAX_PARTS, FilePlan
from tenants.errors import Forbidden
from tenants.roles import Permission
from tenants.selectors import get_tenant
from tenants.services.quotas import set_tenant_storage
from tenants.storage import StorageLimits


class NewFileSerializer(ClosedSerializer):
    """A file that will come."""

    name = serializers.CharField(max_length=200, trim_whitespace=False)
    size_bytes = serializers.IntegerField(min_value=1, max_value=MAX_FILE_BYTES)


@example(
    {
        "files": [
            {"name": "config.json", "size_bytes": 700},
            {"name": "tokenizer.json", "size_bytes": 2_100_000},
            {"name": "model.safetensors", "size_bytes": 269_060_552},
        ],
        "derived_from": None,
        "derivation": "",
    }
)
class NewUploadSerializer(ClosedSerializer):
    """A version that will come, with all its files."""

    files = serializers.ListField(child=NewFileSerializer(), min_length=1, max_length=MAX_FILES)
    derived_from = serializers.CharField(
        max_length=32, allow_null=True, default=None, help_text="The id of the version that this one was made from."
    )
    derivation = serializers.CharField(max_length=200, allow_blank=True, default="", help_text="How, in a line.")


class ArrivedPartSerializer(serializers.Serializer[Any]):
    """A part that has arrived as it was announced."""

    number = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField()


class UploadFileSerializer(serializers.Serializer[Any]):
    """A file of an upload."""

    name = serializers.CharField()
    size_bytes = serializers.IntegerField()
    parts = serializers.IntegerField(help_text="How many parts it comes in; all but the last have part_bytes.")
    arrived = ArrivedPartSerializer(many=True)


class UploadSerializer(serializers.Serializer[Any]):
    """An upload. Once its state is not uploading, see the version."""

    version_id = serializers.CharField(source="version.id")
    model_id = serializers.CharField(source="version.model_id")
    model = serializers.CharField(source="version.model.name")
    number = serializers.IntegerField(source="version.number")
    state = serializers.CharField(source="version.state")
    part_bytes = serializers.IntegerField()
    expires_at = serializers.DateTimeField(
        source="version.expires_at", allow_null=True, help_text="Given up then, unless a part is announced before."
    )
    files = UploadFileSerializer(many=True)


@example({"file": "config.json", "number": 1, "size_bytes": 1000, "sha256": "0123456789abcdef" * 4})
class NewPartSerializer(ClosedSerializer):
    """A part that will be sent."""

    file = serializers.CharField(max_length=200)
    number = serializers.IntegerField(min_value=1, max_value=MAX_PARTS)
    size_bytes = serializers.IntegerField(min_value=1)
    sha256 = serializers.CharField(max_length=64, min_length=64, help_text="Of the part's bytes, in hex.")


class TargetSerializer(serializers.Serializer[Any]):
    """Where to send a part: with this method, these headers and exactly the announced bytes as the body."""

    method = serializers.CharField()
    url = serializers.CharField()
    headers = serializers.DictField(child=serializers.CharField())


class UploadedVersionSerializer(serializers.Serializer[Any]):
    """The version that an upload became."""

    version_id = serializers.CharField(source="id")
    state = serializers.CharField()


@example({"stored_bytes": 100_000_000_000, "stored_files": None, "open_uploads": 8})
class StorageLimitsSerializer(ClosedSerializer):
    """Limits of what a tenant keeps; null is no limit of its own, so the installation's holds."""

    stored_bytes = serializers.IntegerField(allow_null=True)
    stored_files = serializers.IntegerField(allow_null=True)
    open_uploads = serializers.IntegerField(allow_null=True)


class StorageSerializer(serializers.Serializer[Any]):
    """What the tenant keeps, open uploads included, and what it may keep."""

    stored_bytes = serializers.IntegerField()
    stored_files = serializers.IntegerField()
    open_uploads = serializers.IntegerField()
    limits = StorageLimitsSerializer()


class UploadsView(TenantView):
    """Uploads to a model."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="begin_upload", request=NewUploadSerializer, responses={201: UploadSerializer})
    def post(self, request: Request, model: str) -> Response:
        """Begin the upload of a version. The model is named by its name or id; one of a new name is made."""
        values = read(NewUploadSerializer, request.data)
        upload = uploads.begin_upload(
            actor=self.actor,
            model=model,
            files=[FilePlan(**file) for file in values["files"]],
            derived_from=values["derived_from"],
            derivation=values["derivation"],
            store=stores.from_settings(),
        )
        return Response(UploadSerializer(upload).data, status=201)


class UploadView(TenantView):
    """One upload, by the id of its version."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="get_upload", responses=UploadSerializer)
    def get(self, request: Request, upload_id: str) -> Response:
        """Return the upload with the parts that have arrived: whoever was interrupted sends the others."""
        upload = uploads.get_upload(actor=self.actor, version_id=upload_id, store=stores.from_settings())
        return Response(UploadSerializer(upload).data)

    @extend_schema(operation_id="abort_upload", responses={204: None})
    def delete(self, request: Request, upload_id: str) -> Response:
        """Give the upload up; what has arrived is removed."""
        uploads.abort_upload(actor=self.actor, version_id=upload_id, store=stores.from_settings())
        return Response(status=204)


class UploadPartsView(TenantView):
    """The parts of an upload."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="announce_part", request=NewPartSerializer, responses=TargetSerializer)
    def post(self, request: Request, upload_id: str) -> Response:
        """Say what a part's bytes are, and learn where to send them. The address is good for an hour."""
        values = read(NewPartSerializer, request.data)
        target = uploads.announce_part(actor=self.actor, version_id=upload_id, store=stores.from_settings(), **values)
        url = request.build_absolute_uri(target.url)
        return Response(TargetSerializer({"method": target.method, "url": url, "headers": target.headers}).data)


class UploadPartView(APIView):
    """The address of a part, where this installation keeps files itself. The address is the permission.

    What a signature admits is received by :mod:`controlplane.api.part_receiver` before a request comes here.
    """

    authentication_classes = ()

    @extend_schema(
        operation_id="put_part",
        description="Send a part to the address that announce_part has returned. Ask for a new one where it fails.",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=ArrivedPartSerializer,
        parameters=[
            OpenApiParameter("expires", OpenApiTypes.STR),
            OpenApiParameter("signature", OpenApiTypes.STR),
            OpenApiParameter(stores.CHECKSUM_HEADER, OpenApiTypes.STR, OpenApiParameter.HEADER),
        ],
    )
    def put(self, request: Request, upload_id: str, name: str, number: int) -> NoReturn:
        """Refuse: nothing signed this address."""
        raise Forbidden("Ask for the part's address first: POST /api/v1/uploads/{upload_id}/parts.")


class CompleteUploadView(TenantView):
    """The end of an upload."""

    writes = Permission.MODELS_WRITE

    @extend_schema(operation_id="complete_upload", request=None, responses=UploadedVersionSerializer)
    def post(self, request: Request, upload_id: str) -> Response:
        """Say that all parts have been sent. Missing ones are named; else the version is being validated."""
        version = uploads.complete_upload(actor=self.actor, version_id=upload_id, store=stores.from_settings())
        return Response(UploadedVersionSerializer(version).data)


class StorageView(TenantView):
    """What the tenant keeps."""

    @extend_schema(operation_id="get_storage", responses=StorageSerializer)
    def get(self, request: Request) -> Response:
        """Return what is kept and what may be."""
        return Response(StorageSerializer(storage.get_storage(actor=self.actor)).data)


class TenantStorageView(PlatformView):
    """What a tenant may keep."""

    @extend_schema(
        operation_id="set_tenant_storage", request=StorageLimitsSerializer, responses=StorageLimitsSerializer
    )
    def put(self, request: Request, slug: str) -> Response:
        """Replace the tenant's limits of storage. What it keeps already stays."""
        tenant = get_tenant(actor=self.actor, slug=slug)
        limits = StorageLimits(**read(StorageLimitsSerializer, request.data))
        quota = set_tenant_storage(actor=self.actor, tenant_id=tenant.id, limits=limits)
        return Response(StorageLimitsSerializer(quota.storage).data)
