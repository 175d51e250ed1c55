"""Which requests the engine does not take, or no longer, and what it says to them."""

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import MAX_CHOICES
from dataplane.contracts.usage import Phases
from dataplane.engine.config import EngineConfig
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue

_MAX_TOKEN_ID = 2**31 - 1


class Refusal(ApiError):
    """A request that the engine does not take; ``code`` and ``message`` say why."""


def check(request: Submit, config: EngineConfig) -> None:
    """Check what is the same for every tenant.

    Raises:
        Refusal: it is malformed, or longer than the context.
    """
    sampling, prompt = request.sampling, request.prompt_token_ids
    if not prompt or min(prompt) < 0 or max(prompt) > _MAX_TOKEN_ID:
        raise Refusal(Code.INVALID_REQUEST, "the prompt must hold at least one token, and token ids only")
    if not 1 <= request.n <= MAX_CHOICES:
        raise Refusal(Code.INVALID_PARAMETER, f"n is {request.n}; it must be from 1 to {MAX_CHOICES}")
    if sampling.max_tokens < 1:
        raise Refusal(Code.INVALID_PARAMETER, f"max_tokens is {sampling.max_tokens}; it must be at least 1")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise Refusal(
            Code.INVALID_PARAMETER,
            f"min_tokens is {sampling.min_tokens}; it must be between 0 and max_tokens ({sampling.max_tokens})",
        )
    needed = len(prompt) + sampling.max_tokens
    if needed > config.max_model_len:
        raise Refusal(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"the request needs {needed} tokens ({len(prompt)} of prompt and max_tokens {sampling.max_tokens}), "
            f"the context holds {config.max_model_len}; shorten the prompt or lower max_tokens",
        )


def check_room(request: Submit, config: EngineConfig, tenant: TenantQueue) -> None:
    """Check what its tenant has room for.

    Raises:
        Refusal: it can never fit under the tenant's cap, or the tenant's queue is full.
    """
    needed = len(request.prompt_token_ids) + request.sampling.max_tokens
    if config.blocks_for(needed) > tenant.budget.limit_blocks:
        raise Refusal(Code.REQUEST_TOO_LARGE_FOR_BUDGET, too_large(needed, config, tenant.budget))
    if tenant.num_waiting + request.n > config.queue_limit_per_tenant:
        raise Refusal(
            Code.QUEUE_FULL,
            f"{tenant.num_waiting} requests of this tenant are waiting, the limit is "
            f"{config.queue_limit_per_tenant}; retry when some have finished",
        )


def waited_too_long(phases: Phases) -> str:
    """Return the sentence for a request without a token at its deadline; it names what it waited for longest."""
    causes = {
        "a part of its tenant's own cap": phases.own_budget_ms,
        "its turn among the tenants": phases.fair_share_ms,
        "free KV memory or a free slot": phases.memory_ms,
        "its prompt to be computed": phases.prefill_ms,
    }
    waits_ms = {cause: wait_ms or 0 for cause, wait_ms in causes.items()}
    return (
        f"the request had no token after {sum(waits_ms.values()) / 1000:.1f} s, as long as it may wait; it waited "
        f"longest for {max(waits_ms, key=lambda cause: waits_ms[cause])}; try again when there is less to do"
    )


def too_large(needed_tokens: int, config: EngineConfig, budget: TenantBudget) -> str:
    """Return the sentence for a request that the cap can never hold."""
    size = config.block_size
    needed_blocks = config.blocks_for(needed_tokens)
    return (
        f"the request needs {needed_tokens} tokens of KV memory ({needed_blocks} blocks of {size}), and at most "
        f"{budget.limit_blocks * size} ({budget.limit_blocks} blocks) are available to its tenant; shorten the prompt, "
        "lower max_tokens, or ask for a higher cap"
    )
