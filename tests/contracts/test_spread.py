"""Advice for a model that one device does not hold."""

import pytest
from domain import CONFIG
from msgspec.structs import replace

from dataplane.contracts.replica import Device
from dataplane.contracts.spread import Link, Way, advise

GIB = 1024**3
GPU = Device("cuda", "80 GB", 80 * GIB)
MODEL = replace(CONFIG, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128)


@pytest.mark.parametrize("link", Link)
def test_what_fits_one_device_is_replicated_whatever_connects_them(link):
    advice = advise(MODEL, 60 * GIB, [GPU] * 4, link)
    assert (advice.way, advice.devices) == (Way.REPLICAS, 1)


@pytest.mark.parametrize(
    ("link", "way"),
    [
        (Link.NVLINK, Way.TENSOR_PARALLEL),
        (Link.PCIE, Way.PIPELINE_PARALLEL),
        (Link.NETWORK, Way.PIPELINE_PARALLEL),
    ],
)
def test_what_does_not_fit_is_spread_by_what_connects_the_devices(link, way):
    advice = advise(MODEL, 160 * GIB, [GPU] * 4, link)
    assert advice.way is way
    assert "160.0 GiB do not fit one device, which can give 68.0 GiB" in advice.words


def test_tensor_parallel_divides_the_heads_and_a_pipeline_the_layers():
    assert advise(MODEL, 160 * GIB, [GPU] * 8, Link.NVLINK).devices == 4  # 8 heads are not cut into 3
    assert advise(MODEL, 160 * GIB, [GPU] * 8, Link.PCIE).devices == 3
    assert advise(replace(MODEL, num_layers=2), 160 * GIB, [GPU] * 8, Link.PCIE).way is Way.NONE


def test_too_few_devices_are_told_how_many_it_takes():
    advice = advise(MODEL, 160 * GIB, [GPU] * 2, Link.NVLINK)
    assert advice.way is Way.NONE
    assert "nor the 2 at hand: it takes 3 or more" in advice.words
