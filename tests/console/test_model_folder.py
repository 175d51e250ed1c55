"""The browser's rules against the inspector's: what one takes, the other does."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import model_folder
from dataplane.inspect import names
from dataplane.inspect.refusals import Refused

SUFFIXES = [suffix for suffixes, _, _ in names._OTHERS for suffix in suffixes]
KNOWN = [*sorted(names._FIXED), "model-00001-of-00002.safetensors"]


def is_taken(name: str) -> bool:
    return re.search(model_folder.TAKEN, name) is not None


def reason(name: str) -> str:
    return next(words for form, words in model_folder.REFUSALS if re.search(form, name, re.IGNORECASE))


def is_the_inspectors(name: str) -> bool:
    try:
        names.check_name(name)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_inspector_takes_is_sent(name):
    assert is_taken(name)


@given(
    st.sampled_from(KNOWN).flatmap(lambda name: st.sampled_from([name + "x", "x" + name, name.upper(), name[1:]]))
    | st.from_regex(r"model-[0-9]{4,6}-of-[0-9]{4,6}\.safetensors", fullmatch=True)
    | st.text("abcMODEL.-0145", max_size=30)
)
def test_a_name_is_judged_as_the_inspector_judges_it(name):
    assert is_taken(name) == is_the_inspectors(name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_the_inspector_knows_by_its_ending_is_refused_with_a_reason_of_its_own(suffix):
    assert reason(f"weights{suffix.upper()}") != reason("notes.txt")


def test_a_folder_below_is_refused_as_one():
    assert "folder below" in reason("onnx/model.safetensors")


@pytest.mark.parametrize(
    "form", [model_folder.TAKEN, *(form for form, _ in model_folder.REFUSALS + model_folder.NEEDED)]
)
def test_the_patterns_mean_the_same_in_a_browser(form):
    assert not re.search(r"\\[dwsbAZ]|\(\?", form), "these differ between the two languages"
