"""A product of the folder's own: its files lie in a bucket, and no process waits in reserve unless a policy asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from applications import Applications
from object_store import ObjectStore, running_object_store
from owner import Owner, make_key
from running_stack import RunningStack, running_stack
from tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The object store of the product."""
    with running_object_store(tmp_path_factory.mktemp("s3") / "objects") as store:
        yield store


@pytest.fixture(scope="module")
def product_on_s3(bucket: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A product that hosts a tiny model to begin with, so that it starts soon."""
    resident = make_tiny_llama(tmp_path_factory.mktemp("models") / "resident")
    with running_stack(**bucket.environment, PAGODA_MODEL_DIR=str(resident), PAGODA_WARM_IDLE_FLOOR="0") as running:
        yield running


@pytest.fixture(scope="module")
def key(product_on_s3: RunningStack) -> str:
    """A key that may call models, bring them and deploy them."""
    return make_key(product_on_s3.details, ["inference", "deployments"])


@pytest.fixture(scope="module")
def owner(product_on_s3: RunningStack, key: str) -> Iterator[Owner]:
    """Whoever brings models and deploys them."""
    with Owner(product_on_s3.details["api_url"], key) as known:
        yield known


@pytest.fixture
def applications(product_on_s3: RunningStack, key: str) -> Applications:
    """Whoever calls models."""
    return Applications(product_on_s3.details["gateway_url"], key)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A model that needs three parts for its weights, and takes a moment to load."""
    return make_tiny_llama(
        tmp_path / "tiny", seed=1, vocab_size=300, hidden_size=512, intermediate_size=1024, num_heads=8,
        num_kv_heads=4, head_dim=64, context_tokens=256,
    )  # fmt: skip
