"""Settings of an engine: sizes chosen by the worker, and the constants of the fairness rule."""

from dataclasses import dataclass
from functools import cache

from dataplane.contracts.generation import QUEUE_LIMIT_PER_TENANT

BLOCK_SIZES_TOKENS = (8, 16, 32)
_POSITIVE = ("num_blocks", "max_num_seqs", "max_model_len", "queue_limit_per_tenant", "prefix_window")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and policy of one engine.

    A service unit is what one computed prompt token costs a tenant of weight 1.

    Attributes:
        num_blocks: blocks in the KV pool.
        block_size: tokens in a block, one of :data:`BLOCK_SIZES_TOKENS`.
        max_num_seqs: most sequences that compute at once, a row of a step each; beside them some may be paused.
        max_model_len: most tokens (prompt and output together) of one sequence.
        step_token_budget: most tokens computed in one step.
        prefill_chunk_tokens: most prompt tokens of one sequence in a step; None is the whole step.
        prefix_cache: reuse the KV of equal prefixes within a tenant.
        queue_limit_per_tenant: most requests of one tenant that wait.
        input_weight, output_weight: service units of a computed prompt token and of a sampled token.
        cached_weight: service units of a prompt token found in the cache: no compute, but it holds blocks.
        turn_gap_units: how far above the least counter a tenant may be and still reclaim its guarantee or take a row
            over, and how far below another's its own must be to take one of as many.
        return_credit_steps: prompts of so many steps that a tenant may be behind the virtual time when it comes back,
            of what it was behind when it left. Simulated with three tenants that send 0.8 of their share by a Poisson
            process and a fourth that sends ten times its own (`dataplane.sim fairness`, five seeds): the p95 of the
            three's first tokens is 2.7 (2.1 to 3.5) times that without the fourth if they come back with nothing, and
            with 2, 4, 8 and 16 steps 2.2, 1.7, 1.3 and 1.2 (1.1 to 1.4) times. Where they wait for rows as well (the
            simulation of ``backlog_prompt_fraction``) two of five seeds have 1.6 and 2.2 times with 16, none more than
            1.4 with 32, and 64 change nothing. It widens the bound by as much.
        service_debt_steps: for how many full steps of others' turns a tenant may be put back at most for what other
            replicas served it. Full steps, for a step is sized to take about as long on any device. Not more: a debt
            outlives the replica that caused it, and who has lost one must not starve at the rest. Not less than what a
            replica serves between two exchanges: else whoever calls several gets more.
        reclaim_recompute_share: tokens that all reclaims together may make others recompute, per token of new work.
        min_run_steps: steps a sequence runs before it may be preempted for somebody else's admission.
        backlog_step_fraction, backlog_prompt_fraction: the prompts of tenants whose next requests wait anyway fill a
            step, with what decodes, up to so much of its tokens, or of those of a prompt of another tenant that had
            less and is served as it comes: that waits for the step that runs, which should take no longer than its own.
            Where the others pass that alone, a backlog waits, for no more than ``give_way_steps`` in a row. Simulated
            with three tenants at 0.8 of their share and a fourth at ten times its own, 32 tokens out, 32 rows, steps as
            measured of int8 on two cores (4 ms, 1 ms a row that decodes, 0.77 ms a token of a prompt), medians of eight
            seeds: with prompts of 64, 128 and 256 tokens the p95 of the three's first tokens is 2.2, 1.7 and 1.4 times
            that without the fourth if steps are filled, and 1.3, 1.2 and 1.2 times with these, for 97 to 100 % of
            first-come's service. A fifth of the tokens and three quarters of the prompt, and one step in a row, give a
            twentieth more each.
        burst_requests, burst_steps: so few requests that wait, of a tenant that had none in line so recently, are a
            burst and no backlog. Where bursts are taken for backlogs, one in six runs of that simulation, with a tenth
            more calls, has 1.8 to 2.5 times: in short steps those served as they come fall behind as well, and steps
            stay short for seconds.
        pause_limit: most sequences that are paused at once, with their blocks, while a tenant with fewer rows has
            theirs. 0: a row is free when an answer ends; in the same simulation, 7 times at p95 instead of 2.5.
        served_at_once_steps: for how many steps a tenant counts as one that is served as it comes.
        watermark_fraction: part of the pool that new requests above their guarantee leave free for growth and for
            the preempted. Simulated on four workloads (chats, short and long answers, a heavy tail) with pools of 40 %
            and 20 % of all slots at their longest, all at once and at 0.9 of what can be served: 0, 3, 5, 10, 15 and
            20 % give 96.7, 98.6, 99.3, 99.6, 99.5 and 99.2 % of the best output of each case, compute 9.3, 5.9, 4.3,
            3.0, 2.3 and 2.1 % again, and have first tokens at p95 10, 5, 2, 1, 5 and 9 % later than the best.
        long_output_factor: so many times what a tenant's requests usually generate makes a long generation: it is set
            aside for a head of its tenant that finds no room. A multiple, for a tenant whose answers are all of one
            length should not see them take turns; of the median, which essays do not move. Simulated with 8 slots at
            0.94 (0.8) of what can be served, one call in 20 an essay of ten times the length (tests/engine/essays.py):
            the p99 of the short ones is 5.2-6.7 (3.1-3.4) times that without essays if nothing is set aside, and with
            4, 3 and 2 it is 1.6, 1.4 and 1.2 (1.4, 1.3 and 1.2) times. With 2 a quarter of answers whose lengths are
            spread widely would be set aside.
        long_share: part of a tenant's service that what is aside has while others of it wait, and the part of all steps
            that compute its long generations beside so many others of it.
        long_beside_rows: with so many other sequences of a tenant its long generations sit steps out, while nobody else
            waits. Simulated like ``long_output_factor`` with 32 rows and steps as measured of int8 on two cores, 3.4
            (4.3) short calls a second: their p99 is 1.4 (1.6) times that without essays if nothing sits out, and 1.3
            (1.3), 1.2 (1.2) and 1.1 (1.2) times with 6, 4 and 2, for which essays take 1.03 (1.1), 1.1 (1.3) and 1.5
            (2.0) times as long. Where rows cost next to nothing, as on a GPU, nothing need sit out.
        prefix_window: requests at the front of a tenant's queue among which the longest cached prefix goes first.
        prefix_max_passes: times the front of a queue may be passed in that way.

    Raises:
        ValueError: a size that no engine can run with.
    """

    num_blocks: int
    block_size: int = 8
    max_num_seqs: int = 32
    max_model_len: int = 2048
    step_token_budget: int = 256
    prefill_chunk_tokens: int | None = None
    prefix_cache: bool = True
    queue_limit_per_tenant: int = QUEUE_LIMIT_PER_TENANT
    input_weight: float = 1.0
    output_weight: float = 2.0
    cached_weight: float = 0.25
    turn_gap_units: float = 64.0
    return_credit_steps: int = 32
    service_debt_steps: int = 16
    reclaim_recompute_share: float = 0.1
    min_run_steps: int = 16
    backlog_step_fraction: float = 0.17
    backlog_prompt_fraction: float = 0.66
    give_way_steps: int = 4
    burst_requests: int = 4
    burst_steps: int = 64
    pause_limit: int = 32
    served_at_once_steps: int = 256
    watermark_fraction: float = 0.1
    long_output_factor: float = 3.0
    long_share: float = 0.125
    long_beside_rows: int = 4
    prefix_window: int = 8
    prefix_max_passes: int = 8

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES_TOKENS:
            raise ValueError(f"block_size is {self.block_size}; allowed are {', '.join(map(str, BLOCK_SIZES_TOKENS))}")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.step_token_budget < self.max_num_seqs:
            raise ValueError(
                f"step_token_budget {self.step_token_budget} is below max_num_seqs {self.max_num_seqs}: "
                "every running sequence must be able to advance by one token in a step"
            )
        if self.prefill_chunk_tokens is not None and self.prefill_chunk_tokens < 1:
            raise ValueError(f"prefill_chunk_tokens is {self.prefill_chunk_tokens}; it must be at least 1 or None")

    def backlog_tokens(self, decode_tokens: int, delayed_prompt_tokens: int) -> int:
        """Return up to how many prompt tokens of a step a backlog may fill, beside ``decode_tokens``.

        ``delayed_prompt_tokens``: the prompt of whoever is served as it comes, and waits for the step to end.
        """
        within = self.backlog_within(delayed_prompt_tokens)
        return max(within - decode_tokens, within // 3, 1)

    def backlog_within(self, delayed_prompt_tokens: int) -> int:
        """Return how long a step may be made by a backlog, in tokens, decoding ones and all prompts together."""
        of_step = self.backlog_step_fraction * self.step_token_budget
        return int(max(of_step, self.backlog_prompt_fraction * delayed_prompt_tokens))

    @property
    def step_units(self) -> float:
        """The most that one step costs: prompts, and a token of each sequence."""
        return self.input_weight * self.step_token_budget + self.output_weight * self.max_num_seqs

    @property
    def return_credit_units(self) -> float:
        """How far below the virtual time a counter may come back."""
        return self.return_credit_steps * self.input_weight * self.step_token_budget

    @property
    def service_debt_units(self) -> float:
        """How far above the virtual time service elsewhere may put a counter."""
        return self.service_debt_steps * self.step_units

    def bound_units(self, cap_blocks: int, weight: int) -> float:
        """Return how far a counter may get ahead of others in line: U of docs/fairness.md, on one replica."""
        slack_units = self.step_units + self.turn_gap_units + self.return_credit_units
        return self.cap_units(cap_blocks) / weight + slack_units

    def cap_units(self, cap_blocks: int) -> float:
        """Return what sequences under a cap may still be charged once no other is admitted.

        Each of R sequences that end one after another hands its blocks to those that still grow, so it is not the cap
        once but the R-th harmonic number times.
        """
        sequences = min(self.max_num_seqs, cap_blocks)
        return self.output_weight * cap_blocks * self.block_size * harmonic(sequences)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)


@cache
def harmonic(count: int) -> float:
    """Return 1 + 1/2 + ... + 1/count."""
    return sum(1 / k for k in range(1, count + 1))
