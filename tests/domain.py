"""Models, versions and deployments as rows, for tests that need no real folder."""

import hashlib
from itertools import count

import msgspec

from controlplane.deployments import services
from controlplane.deployments.models import Deployment
from controlplane.registry.models import Artifact, Model, ModelVersion, VersionFile, VersionState
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.model_config import ModelConfig
from tenants.actor import acting_as, system_actor
from tenants.models import Tenant
from tenants.services.quotas import set_tenant_serving
from tenants.serving import ServingLimits

PLATFORM = system_actor("tests")
CONFIG = ModelConfig(
    architecture="llama", vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, context_tokens=512, rms_norm_eps=1e-5, rope_theta=1e4, tied_embeddings=False,
    attention_bias=False, mlp_bias=False, weight_dtype="fp32", bos_token_id=1, eos_token_ids=(2,),
)  # fmt: skip
KV_BYTES_PER_TOKEN = 512
_numbers = count(1)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_version(tenant: Tenant, name: str = "tiny", state: VersionState = VersionState.READY) -> ModelVersion:
    """Write a version of the tiny Llama's shape, with two files of no real bytes."""
    number = next(_numbers)
    with acting_as(PLATFORM):
        model, _ = Model.objects.get_or_create(tenant=tenant, name=name)
        version = ModelVersion.objects.create(
            tenant=tenant, model=model, number=number, digest=sha256(f"version {number}"), state=state,
            config=msgspec.to_builtins(CONFIG), context_tokens=512, num_parameters=100_000, weight_bytes=400_000,
            size_bytes=401_000, has_chat_template=True, source="/models/tiny", created_by="tests",
        )  # fmt: skip
        for file, size_bytes in (("config.json", 1_000), ("model.safetensors", 400_000)):
            artifact = Artifact.objects.create(tenant=tenant, sha256=sha256(f"{file} {number}"), size_bytes=size_bytes)
            VersionFile.objects.create(tenant=tenant, version=version, artifact=artifact, name=file)
    return version


def deploy(tenant: Tenant, name: str = "chat", version: ModelVersion | None = None, **settings: object) -> Deployment:
    """Deploy a version of ``tenant``, a fresh one where none is given, with 2,048 tokens of KV memory."""
    settings.setdefault("engine", EngineSettings(kv_memory_mb=1, block_size=16))
    return services.deploy_version(
        actor=system_actor("tests", tenant),
        name=name,
        version_id=(version or make_version(tenant)).id,
        **settings,  # type: ignore[arg-type]
    )


def allow_many(tenant: Tenant) -> None:
    """Let ``tenant`` deploy as much as a test needs."""
    set_tenant_serving(
        actor=PLATFORM, tenant_id=tenant.id, limits=ServingLimits(deployments=10_000, kept_replicas=10_000)
    )
