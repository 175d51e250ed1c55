"""What each precision may cost, on the bundled model and a text that it was not trained on."""

from pathlib import Path

import pytest
from text_quality import Quality, measured, windows

MOST_WORSE = {("int8", "fp16"): 0.01, ("int4", "fp16"): 0.01, ("fp32", "int8"): 0.01}
"""Of fp32's perplexity, by the precisions of weights and of keys and values. What int4 costs the layers of other models
is not seen on the bundled one (``tests/text_quality.py``)."""
LEAST_CLOSE = 0.97
BRIEF_WINDOWS, ALL_WINDOWS = 1, 16


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kv_dtype"), MOST_WORSE)
def test_a_precision_costs_no_more_perplexity_than_is_allowed(
    dtype: str, kv_dtype: str, exact: Quality, bundled_dir: Path, bundled_runtime_dir: Path
) -> None:
    found = measured(bundled_dir, bundled_runtime_dir, windows(bundled_dir, ALL_WINDOWS), dtype, kv_dtype)
    assert found.perplexity <= exact.perplexity * (1 + MOST_WORSE[dtype, kv_dtype])
    assert found.agreement(exact)[1] >= LEAST_CLOSE


@pytest.fixture(scope="module")
def exact(bundled_dir: Path, bundled_runtime_dir: Path) -> Quality:
    return measured(bundled_dir, bundled_runtime_dir, windows(bundled_dir, ALL_WINDOWS), "fp32", "fp32")


def test_int8_and_int4_read_a_little_text_as_fp32_does(bundled_dir: Path, bundled_runtime_dir: Path) -> None:
    text = windows(bundled_dir, BRIEF_WINDOWS)
    exact, *rounded = (
        measured(bundled_dir, bundled_runtime_dir, text, *dtypes)
        for dtypes in (("fp32", "fp32"), ("int8", "int8"), ("int4", "fp16"))
    )
    for found in rounded:
        assert found.perplexity == pytest.approx(exact.perplexity, rel=0.02)
        assert found.agreement(exact)[1] >= LEAST_CLOSE
