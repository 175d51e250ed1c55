import msgspec
import pytest
from domain import CONFIG

from console import model_words
from controlplane.registry.models import VersionState
from dataplane.contracts.model_config import FAMILIES, LinearScaling, YarnScaling
from dataplane.contracts.model_config.quantisation import SCHEMES


def test_a_config_is_told_in_words():
    assert model_words.sentence(CONFIG) == (
        "A Llama of 2 layers, 64 wide, with 4 attention heads that share 2 of keys and values. It knows 320 tokens, "
        "reads up to 512 of them at once, and was saved in fp32."
    )


def test_what_is_not_so_is_not_told():
    config = msgspec.structs.replace(CONFIG, num_kv_heads=4, tied_embeddings=True)
    assert "with 4 attention heads. It" in model_words.sentence(config)
    assert "share one table" in model_words.sentence(config)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_says_what_of_it_is(scheme):
    words = model_words.sentence(msgspec.structs.replace(CONFIG, quantisation=scheme))
    assert words.endswith(
        f"in {scheme.removeprefix('kv-')}." if "kv" in scheme else f"to {scheme}, and it runs in that."
    )


def test_every_family_is_told_with_the_window_of_its_layers():
    for architecture in FAMILIES:
        words = model_words.sentence(msgspec.structs.replace(CONFIG, architecture=architecture))
        assert words.startswith(f"A {model_words.value(architecture)} of 2 layers")
    config = msgspec.structs.replace(CONFIG, architecture="gemma2", sliding_window=4096, sliding_layers=(0,))
    assert "; 1 of its layers see the last 4,096 tokens. It knows" in model_words.sentence(config)


def test_a_field_has_the_name_that_people_use_and_a_new_one_its_own():
    assert model_words.field("num_kv_heads") == "KV heads"
    assert model_words.field("sliding_layers") == "Sliding layers"


def test_every_state_of_a_version_is_explained():
    assert model_words.STATES.keys() == set(VersionState.values)


@pytest.mark.parametrize(
    ("found", "words"),
    [(None, "none"), ((), "none"), ("", "none"),
     (True, "yes"), (False, "no"), (49_152, "49,152"), (1e-5, "1e-05"), (1e4, "10,000"),
     ((2, 7), "2, 7"), ("bf16", "bf16"), ("gemma3_text", "Gemma 3"), (LinearScaling(8.0), "8 times, linear"),
     (YarnScaling(4.0, 32.0, 1.0, 128, None), "4 times, yarn")],
)  # fmt: skip
def test_values_are_read_as_people_read_them(found, words):
    assert model_words.value(found) == words
