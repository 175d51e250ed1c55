"""The plan against what replicas of the bundled model take."""

import os
from pathlib import Path

import pytest
from replica_memory import CONFIGURATIONS, MOST_ERROR, measured, predicted


@pytest.fixture(scope="module")
def runtime_dir(tmp_path_factory):
    """Weights are converted once for each precision."""
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def model_dir():
    home = Path(os.environ.get("PAGODA_HOME", Path(__file__).parents[2] / "var"))
    folder = Path(os.environ.get("PAGODA_MODEL_DIR", home / "models" / "smollm2-135m-instruct"))
    if not (folder / "config.json").is_file():
        pytest.fail(f"the bundled model is not at {folder}: run `make model`, or set PAGODA_MODEL_DIR to its folder")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "context_tokens"), CONFIGURATIONS)
def test_a_replica_takes_what_was_planned_within_five_per_cent(
    dtype, context_tokens, model_dir, runtime_dir, record_property
):
    plan = predicted(model_dir, dtype, context_tokens)
    run = measured(model_dir, runtime_dir, dtype, context_tokens)
    record_property("predicted_bytes", plan.peak_bytes)
    record_property("measured_bytes", run.peak_bytes)
    assert plan.peak_bytes == pytest.approx(run.peak_bytes, rel=MOST_ERROR)
    assert plan.held_bytes == pytest.approx(run.held_bytes, rel=MOST_ERROR)
