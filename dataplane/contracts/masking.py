"""Messages between the engine process and its masking child, which says which tokens a grammar allows next.

They travel as frames of :mod:`dataplane.contracts.wire` over a Unix socket pair. Grammars are texts of
:mod:`dataplane.text.grammar`; the child keeps what it has compiled, by a number that the engine gives.
"""

import msgspec


class _Message(msgspec.Struct, frozen=True):
    """Base of every message: the tag is the class name."""


# engine -> child


class Compile(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Compile a grammar; answered by :class:`Compiled`."""

    grammar_id: int
    grammar: str


class Forget(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Let a compiled grammar go."""

    grammar_id: int


class Advance(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """A sequence, new or known, goes on by ``token_ids``; answered by :class:`Mask`."""

    sequence: int
    grammar_id: int
    token_ids: list[int]


class End(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """A sequence is over."""

    sequence: int


ToMasker = Compile | Forget | Advance | End

# child -> engine


class MaskerReady(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The vocabulary is read; ``error`` says why not."""

    error: str = ""


class Compiled(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """A grammar can be used; ``error`` says why not."""

    grammar_id: int
    error: str = ""


class Mask(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The tokens that may come next in a sequence: a bit for each, the least of a byte first. ``error``: none can."""

    sequence: int
    bits: bytes
    error: str = ""


FromMasker = MaskerReady | Compiled | Mask
