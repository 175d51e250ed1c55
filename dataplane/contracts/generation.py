"""Messages between the three processes of a replica: server to engine and back, server to tokenizer child and back.

They travel as frames of :mod:`dataplane.contracts.wire` over a Unix socket pair.
"""

from enum import StrEnum

import msgspec

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.errors import ApiError
from dataplane.contracts.leases import Lease
from dataplane.contracts.parallel import Parallel
from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.usage import Phases


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class _Message(msgspec.Struct, frozen=True):
    """Base of every message: the tag is the class name."""


# server -> engine


QUEUE_LIMIT_PER_TENANT = 256
"""Most requests of one tenant that wait, unless a worker is told otherwise."""


class LoadModel(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Attach weights and make the KV pool.

    ``salt_secret`` seeds the tenants' cache salts. ``failpoints`` are those armed for this version alone, by a test.
    ``parallel``: across how many processes. ``leases``: what of the shares is here; without one a share is here whole.
    ``queue_limit_per_tenant``: most requests of one tenant that wait.
    """

    model_dir: str
    runtime_dir: str
    version_digest: str
    engine: EngineSettings
    tenants: dict[str, Share]
    salt_secret: bytes
    failpoints: str = ""
    parallel: Parallel = Parallel()
    leases: dict[str, Lease] = {}
    queue_limit_per_tenant: int = QUEUE_LIMIT_PER_TENANT


class Submit(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """A request, tokenised. ``prompt_token_ids`` is never empty.

    It becomes ``n`` sequences. The first computes the prompt and has the request's own id; the others begin with its
    first token, on its blocks. One that ends or is aborted before that takes them with it. One that has no token
    ``queue_wait_s`` after it joined its line ends with QUEUE_TIMEOUT; None lets it wait as long as it takes.
    """

    request_id: str
    tenant_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    n: int = 1
    queue_wait_s: float | None = None

    def sequence_ids(self) -> list[str]:
        """Return the ids that its sequences have, by choice."""
        return [self.request_id, *(f"{self.request_id}#{choice}" for choice in range(1, self.n))]


class AbortSequence(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The caller has gone, or a stop string was found. ``request_id`` is the id of one sequence."""

    request_id: str


class SetTenants(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """New shares and what of them is here; safe mid-flight. Answered by :class:`TenantsSet` once they are in force.

    Those that the pool cannot keep are not answered, and the old ones hold.
    """

    tenants: dict[str, Share]
    leases: dict[str, Lease] = {}
    number: int = 0


class CountService(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Service that other replicas gave since the last such message, in units, by tenant: it counts for turns here."""

    units: dict[str, float]


class ReleasePool(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Give the KV pool back to the machine; refused while there is work. Answered by :class:`PoolChanged`."""


class RestorePool(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Make the KV pool again. Answered by :class:`PoolChanged`."""


class DumpEngine(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for :class:`EngineDump`."""


ToEngine = LoadModel | Submit | AbortSequence | SetTenants | CountService | ReleasePool | RestorePool | DumpEngine

# engine -> server


class EngineLoad(msgspec.Struct, frozen=True):
    """The engine's own figures after a step. Blocks of ``block_size`` tokens.

    ``lost_hits_tokens`` are those that one prefix cache for all tenants would have found besides: it tells of others'
    prompts, and is for those who run the platform.
    """

    step: int
    num_running: int
    num_waiting: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    owned_blocks: int
    block_size: int
    num_preemptions: int
    prefix_cache_queries_tokens: int
    prefix_cache_hits_tokens: int
    prompt_tokens: int
    generation_tokens: int
    failed_rows: int = 0
    lost_hits_tokens: int = 0


class PreemptionCause(StrEnum):
    """Why a running sequence was sent back to its line.

    GROWTH: one that ran needed a block. RECLAIM: a tenant took back what it is guaranteed. SHARES: its
    tenant's cap was lowered. OWN: a long generation made room for another request of its own tenant.
    """

    GROWTH = "growth"
    RECLAIM = "reclaim"
    SHARES = "shares"
    OWN = "own"


class TenantLoad(msgspec.Struct, frozen=True):
    """One tenant in the pool, now and since the engine knows it. What counts only grows: readers take differences.

    An account that is forgotten (of a tenant that no share names, idle) begins at 0 again.

    Attributes:
        num_running: its sequences that compute.
        num_waiting: its requests that do not, paused ones included.
        num_paused: those that keep their blocks while another tenant has their place in the step.
        service: its counter: units divided by the weight, lifts included.
        peak_owned_blocks: the most that it ever owned.
        preemptions: of its sequences, by :class:`PreemptionCause`.
        within_guarantee_preemptions: those for the memory of another tenant while it was within its guarantee. Never.
        pauses: how often one of its sequences left its row to a tenant that had less; nothing is computed again.
        served_units: what it was charged, not divided by the weight, without lifts.
        service_gap_units: how far another tenant's counter got ahead while both had requests in line and memory blocked
            neither, where that came nearest to its bound in the last five to ten minutes. 0 where it was not behind.
        service_bound_units: how far that other could get at most.
        prefix_queries_tokens: prompt tokens that were looked up in the prefix cache.
        prefix_hits_tokens: those that were found.
        head_tokens: of the waiting request that goes next: what must fit before anything else of the tenant runs.
    """

    tenant_id: str
    guarantee_blocks: int
    cap_blocks: int
    weight: int
    owned_blocks: int
    cached_blocks: int
    num_running: int
    num_waiting: int
    service: float
    num_paused: int = 0
    peak_owned_blocks: int = 0
    preemptions: dict[str, int] = {}
    within_guarantee_preemptions: int = 0
    pauses: int = 0
    served_units: float = 0.0
    service_gap_units: float = 0.0
    service_bound_units: float = 0.0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    head_tokens: int = 0


CONVERT = "convert"
"""The phase of a load in which the version's weights are packed for this node: once per version and node."""


class LoadProgress(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """A load goes on: any of these extends the deadline."""

    phase: str
    done_bytes: int
    total_bytes: int


class Loaded(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The model can be called. ``kernels`` says which were chosen, for the log and the replica's page."""

    context_tokens: int
    load: EngineLoad
    kernels: str
    load_ms: int


class LoadFailed(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The model cannot be loaded; the sentence says why."""

    message: str


class TokenScore(msgspec.Struct, frozen=True, array_like=True):
    """A token's log probability under the model, before temperature, penalties, bias and filters.

    ``top`` are the likeliest tokens at its place with theirs, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class SequenceDelta(msgspec.Struct, frozen=True):
    """New tokens of one sequence, whose id ``request_id`` is.

    ``scores`` are those of ``token_ids`` where they were asked for; before them, those of the prompt's tokens, the
    second onwards, as they are computed. ``cached_tokens`` is final with the first token. ``phases``, so far, come with
    the first token, with every 16th after it and with the end: so whoever ends a sequence from without nearly knows
    them.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error_code: str = ""
    error_message: str = ""
    cached_tokens: int = 0
    phases: Phases | None = None
    scores: list[TokenScore] = []


def failed(request_id: str, error: ApiError) -> SequenceDelta:
    """Return the delta that ends a sequence with ``error``."""
    return SequenceDelta(
        request_id=request_id,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error_code=error.code.code,
        error_message=error.message,
    )


class StepDone(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """What one step produced; also sent when nothing was, so that progress can be seen.

    ``tenants`` comes a few times a second and when the engine falls idle, else it is None.
    """

    deltas: list[SequenceDelta]
    load: EngineLoad
    step_ms: float
    model_ms: float
    tenants: list[TenantLoad] | None = None


class TenantsSet(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The shares of ``number`` are in force. ``tenants`` says what came of them, in this very moment."""

    number: int
    tenants: list[TenantLoad]


class PoolChanged(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The pool is released or restored as was asked; else ``error`` says why not."""

    error: str = ""


class EngineDump(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Everything a person debugging wants: figures, tenants, and the sequences by id (no text, no token ids)."""

    load: EngineLoad
    tenants: list[TenantLoad]
    sequences: list[dict[str, str | int | float]]


FromEngine = LoadProgress | Loaded | LoadFailed | StepDone | TenantsSet | PoolChanged | EngineDump

# server -> tokenizer child


class OpenTokenizer(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Load ``tokenizer.json`` and the chat template of a model folder."""

    model_dir: str


class EncodeText(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Encode a plain prompt; special tokens in the text are text.

    ``max_tokens``: a text that has too many bytes for so many tokens is refused unread. None: any is encoded.
    """

    call: int
    text: str
    max_tokens: int | None = None


class EncodeChat(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Render the chat template over ``messages`` and encode the result.

    ``messages`` is JSON of a list of :class:`dataplane.text.tokenizer.Message`, ``tools`` of a list of tools in
    OpenAI's shape. ``max_tokens`` as in :class:`EncodeText`.
    """

    call: int
    messages: bytes
    max_tokens: int | None = None
    tools: bytes = b"[]"


class FindCallForm(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask in which form the model calls functions. Answered by :class:`CallFormFound`."""

    call: int


ToTokenizer = OpenTokenizer | EncodeText | EncodeChat | FindCallForm

# tokenizer child -> server


class Spellings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each token of a vocabulary is, by id, and what else their text depends on: the whole of decoding.

    A blob and two arrays: a vocabulary of 262,144 tokens takes some 3 MB of a server, not an object for each.

    Attributes:
        blob: the bytes of all tokens, one behind the other.
        lengths: how many bytes each has, as uint16 in this machine's order.
        kinds: a byte for each, a :class:`dataplane.text.detokenize.TokenKind`.
        byte_level: tokens are bytes of a text that is decoded as one; else each is a text or a byte by itself.
        strip: a character that is taken off in front of a text, at most ``strip_count`` times.
        strip_count: see ``strip``.
    """

    blob: bytes
    lengths: bytes
    kinds: bytes
    byte_level: bool
    strip: str = " "
    strip_count: int = 0


class TokenizerOpened(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ready. With ``spellings`` the server decodes by itself."""

    spellings: Spellings


class Encoded(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The ids of one encode call."""

    call: int
    token_ids: list[int]


class CallFormFound(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """The name of one of :data:`dataplane.text.grammar.CALL_FORMS`."""

    call: int
    form: str


class TokenizerError(_Message, frozen=True, tag=True, forbid_unknown_fields=True):
    """One call failed; the child goes on. ``call`` -1 is the open."""

    call: int
    code: str
    message: str


FromTokenizer = TokenizerOpened | Encoded | CallFormFound | TokenizerError
