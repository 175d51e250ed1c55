import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.registry import parts
from controlplane.registry.parts import FilePlan, in_words, num_parts, part_bytes_for, size_of_part
from tenants.errors import Invalid


@given(size_bytes=st.integers(1, 10**12), part_bytes=st.integers(1, 10**8))
def test_the_parts_of_a_file_add_up_to_it(size_bytes, part_bytes):
    count = num_parts(size_bytes, part_bytes)
    last = size_of_part(size_bytes, part_bytes, count)
    assert (count - 1) * part_bytes + last == size_bytes
    assert 1 <= last <= part_bytes
    assert count == 1 or size_of_part(size_bytes, part_bytes, 1) == part_bytes


@given(sizes=st.lists(st.integers(1, parts.MAX_FILE_BYTES), min_size=1))
def test_every_file_that_may_come_fits_into_its_parts(sizes):
    files = [FilePlan(f"f{index}", size) for index, size in enumerate(sizes)]
    part_bytes = part_bytes_for(files, 8 * 2**20)
    assert part_bytes <= parts.MAX_PART_BYTES
    assert all(num_parts(size, part_bytes) <= parts.MAX_PARTS for size in sizes)


@given(st.sets(st.integers(1, 200)))
def test_numbers_in_words_say_each_number_once(numbers):
    said = []
    for piece in filter(None, in_words(numbers).split(", ")):
        first, _, last = piece.partition("-")
        said += range(int(first), int(last or first) + 1)
    assert said == sorted(numbers)


def test_numbers_in_words_are_short():
    assert in_words([7, 5, 6, 2]) == "2, 5-7"


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".hidden", "-rf", "a/b", "/etc/passwd", "../up", "a\\b", "a b", "a\0b", "a\nb", "é", "C:",
        "a" * 201, "a%2fb", "＿", "a;b", "a'b", "a\u202eb", "~", "$HOME", "*", "a|b", "con\x7f",
    ],
)  # fmt: skip
def test_a_name_that_is_more_than_a_name_is_refused(name):
    with pytest.raises(Invalid, match="file's name"):
        parts.check_files([FilePlan("config.json", 1), FilePlan(name, 1)])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "1 to 200 files"),
        ([FilePlan(f"f{number}", 1) for number in range(201)], "1 to 200 files"),
        ([FilePlan("a", 1), FilePlan("a", 2)], "comes twice"),
        ([FilePlan("a", 0)], "is empty"),
        ([FilePlan("a", parts.MAX_FILE_BYTES + 1)], "Save the model in shards"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_by_name(files, says):
    with pytest.raises(Invalid, match=says):
        parts.check_files(files)


def test_each_fault_is_named():
    with pytest.raises(Invalid) as refusal:
        parts.check_files([FilePlan("good", 1), FilePlan("empty", 0), FilePlan("../up", 1)])
    assert set(refusal.value.fields) == {"empty", "../up"}
