"""What the work on a sequence costs its tenant, in service units. Pure."""

from dataplane.engine.config import EngineConfig
from dataplane.engine.sequence import Sequence


class Prices:
    """The prices of one engine.

    Args:
        config: the weights.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def chunk_units(self, sequence: Sequence, num_tokens: int) -> float:
        """Return what a chunk will cost, the token that it samples included."""
        end = sequence.num_computed_tokens + num_tokens
        units = self.prompt_units(sequence, end) + self.again_units(sequence, end)
        samples = num_tokens == sequence.num_uncomputed_tokens
        return units + self._config.output_weight if samples else units

    def again_units(self, sequence: Sequence, end: int) -> float:
        """Return what recompute up to position ``end`` costs: nothing, unless it made room for its tenant's own."""
        if sequence.reclaimed_by != sequence.tenant.id:
            return 0.0
        again_tokens = min(end, sequence.high_water_tokens) - sequence.num_computed_tokens
        return self._config.input_weight * max(0, again_tokens)

    def prompt_units(self, sequence: Sequence, end: int) -> float:
        """Return what the prompt up to position ``end`` costs beyond what was paid: recompute is free."""
        if sequence.charged_tokens >= sequence.num_prompt_tokens:
            return 0.0  # as for every row that decodes
        unpaid = max(0, min(end, sequence.num_prompt_tokens) - sequence.charged_tokens)
        cached = min(unpaid, max(0, sequence.prefix_tokens - sequence.charged_tokens))
        return self._config.cached_weight * cached + self._config.input_weight * (unpaid - cached)

    def turn_end_tokens(self, sequence: Sequence) -> int:
        """Return with how many tokens a sequence that is admitted now has had its turn among its tenant's own.

        A long one that goes on has as many as are usual, and no fewer than cost what it computes again: at least half
        of what its tenant pays for it goes into its answer.
        """
        usual = sequence.tenant.usual_output_tokens
        again_tokens = sequence.num_tokens - sequence.prefix_tokens if sequence.num_preemptions else 0
        worth_tokens = again_tokens * self._config.input_weight / self._config.output_weight
        first_turn = sequence.num_prompt_tokens + self._config.long_output_factor * usual
        return int(max(first_turn, sequence.num_tokens + max(usual, worth_tokens)))
