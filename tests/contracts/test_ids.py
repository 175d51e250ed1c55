import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.ids import Kind, encode, is_id, new_id

kinds = st.sampled_from(Kind)
times = st.integers(0, 2**48 - 1)
randoms = st.integers(0, 2**80 - 1)


@given(kinds, times, randoms, kinds)
def test_an_id_is_one_of_its_kind_only(kind: Kind, at: int, randomness: int, other: Kind) -> None:
    text = encode(kind, at, randomness)
    assert is_id(text, kind)
    assert is_id(text, other) == (other == kind)


@given(kinds, times, times, randoms, randoms)
def test_ids_sort_by_time_and_are_equal_only_for_equal_parts(kind: Kind, a: int, b: int, x: int, y: int) -> None:
    assert (encode(kind, a, x) < encode(kind, b, y)) == ((a, x) < (b, y))
    assert (encode(kind, a, x) == encode(kind, b, y)) == ((a, x) == (b, y))


@given(st.text(), kinds)
def test_no_other_text_is_an_id(text: str, kind: Kind) -> None:
    assert not is_id(text, kind)  # 130 random bits are not found by chance


@given(kinds, times, randoms, st.data())
def test_a_changed_length_or_alphabet_is_no_id(kind: Kind, at: int, randomness: int, data: st.DataObject) -> None:
    text = encode(kind, at, randomness)
    place = data.draw(st.integers(len(kind) + 1, len(text) - 1))
    bad = data.draw(st.sampled_from("ilou ILOU\n\0-é"))
    assert not is_id(text[:place] + bad + text[place + 1 :], kind)
    assert not is_id(text[:-1], kind)
    assert not is_id(text + "0", kind)
    assert not is_id(text + "\n", kind)


@pytest.mark.parametrize(("at", "randomness"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**80)])
def test_a_part_that_does_not_fit_is_refused(at: int, randomness: int) -> None:
    with pytest.raises(ValueError, match="must fit"):
        encode(Kind.REQUEST, at, randomness)


def test_minted_ids_differ() -> None:
    assert len({new_id(Kind.REQUEST) for _ in range(1000)}) == 1000
