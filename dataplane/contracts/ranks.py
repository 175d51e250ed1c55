"""Messages between the ranks of one replica: rank 0, which is the engine's process, to its children and back.

They travel as frames of :mod:`dataplane.contracts.wire` over a Unix socket pair. Rows and sums go another way, by
:mod:`dataplane.model.parallel.group`.
"""

import msgspec

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import LoadFailed, LoadProgress, PoolChanged, ReleasePool, RestorePool
from dataplane.contracts.parallel import Place

# rank 0 -> rank


class LoadPart(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Attach a rank's part of the weights. Answered by :class:`PartLoaded` or ``LoadFailed``, after ``LoadProgress``.

    ``meeting_dir`` is where the ranks find each other: a folder that only their user may enter.
    """

    place: Place
    model_dir: str
    runtime_dir: str
    version_digest: str
    engine: EngineSettings
    meeting_dir: str


class MakePool(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Make a rank's part of the KV pool, and room for steps, to be computed by so many threads.

    Answered by ``PoolChanged``; then the rank waits for the others in the folder where they meet: :class:`AllMet`.
    """

    num_blocks: int
    block_size: int
    max_tokens: int
    max_num_seqs: int
    threads: int


class ComputeStep(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Compute a step, in so many micro-batches. Not answered: what it makes goes from rank to rank.

    ``token_ids`` and ``tables`` (row after row) are int32, ``sequences`` as in :data:`dataplane.model.step.SEQUENCE`.
    """

    micro_batches: int
    token_ids: bytes
    sequences: bytes
    tables: bytes


ToRank = LoadPart | MakePool | ComputeStep | ReleasePool | RestorePool

# rank -> rank 0


class PartLoaded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The part is attached."""


class AllMet(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The rank is connected to all others, and needs the folder where they met no more."""


FromRank = LoadProgress | LoadFailed | PartLoaded | PoolChanged | AllMet
