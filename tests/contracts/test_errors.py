from dataplane.contracts.errors import Code


def test_every_entry_is_found_by_its_code_and_nothing_else_is() -> None:
    assert [Code.named(entry.code, Code.INTERNAL) for entry in Code] == list(Code)
    assert Code.named("no_such_code", Code.OVERLOADED) is Code.OVERLOADED
