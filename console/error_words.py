"""What a request's error code means and what to do about it, in words. Pure."""

from dataclasses import dataclass

from dataplane.contracts.errors import Code


@dataclass(frozen=True, slots=True)
class Meaning:
    """An error code as people read it. ``status`` is what its caller got, 0 where the code is not of the catalogue."""

    what: str
    do: str
    status: int = 0


_OURS = "This is our fault, not the caller’s. A new try may go well; if it does not, send us the request’s id."
_LIMITS = "Spread the calls, honour Retry-After, or ask the platform for a higher limit."
_MEANINGS: dict[Code, tuple[str, str]] = {
    Code.INVALID_REQUEST: ("The call is not of the form that the API has.", "Mend the call; the answer names what."),
    Code.INVALID_JSON: ("The body is not JSON.", "Send a JSON object."),
    Code.UNSUPPORTED_PARAMETER: ("The body asks for something that is not supported.", "Leave the named field out."),
    Code.INVALID_PARAMETER: ("A field of the body has a value that it cannot have.", "Mend the named field."),
    Code.CONTEXT_LENGTH_EXCEEDED: (
        "Prompt and answer together are longer than the model reads at once.",
        "Shorten the prompt, or ask for fewer tokens.",
    ),
    Code.REQUEST_TOO_LARGE_FOR_BUDGET: (
        "The request needs more KV memory than the tenant’s cap allows.",
        "Shorten the prompt, ask for fewer tokens, or ask for a higher cap.",
    ),
    Code.TOKENIZER_FAILED: ("The model’s tokenizer failed on this text.", "Try another text; tell the model’s owner."),
    Code.TEMPLATE_FAILED: ("The model’s chat template failed on these messages.", "See the model card for its roles."),
    Code.GRAMMAR_FAILED: (
        "The grammar, or the schema it was made of, could not be followed to its end.",
        "Use a simpler one; the answer names why.",
    ),
    Code.BODY_TOO_LARGE: ("The body is larger than the API takes.", "Shorten the prompt."),
    Code.INVALID_API_KEY: ("The key is none.", "Send a key of the console."),
    Code.KEY_REVOKED: ("The key was revoked or has expired.", "Make a new key."),
    Code.SCOPE_MISSING: ("The key may not call models.", "Make a key with the scope ‘call models’."),
    Code.TENANT_SUSPENDED: ("The tenant is suspended.", "Its owner can ask the platform why."),
    Code.MODEL_NOT_FOUND: ("There is no such model for this key, or no longer.", "Call one that the answer names."),
    Code.NOT_FOUND: ("There is nothing at this path.", "See the API’s documentation."),
    Code.METHOD_NOT_ALLOWED: ("The path has no such method.", "See the API’s documentation."),
    Code.REQUESTS_PER_MINUTE: ("The limit of requests a minute was reached.", _LIMITS),
    Code.TOKENS_PER_MINUTE: ("The limit of tokens a minute was reached.", _LIMITS),
    Code.CONCURRENT_REQUESTS: ("The limit of requests at a time was reached.", _LIMITS),
    Code.MAX_REQUEST_TOKENS: ("The request may take more tokens than one may.", "Set a lower max_tokens."),
    Code.QUEUE_FULL: (
        "The tenant’s share of the queue was full.", "Send fewer calls at a time, or keep replicas ready."
    ),
    Code.OVERLOADED: ("We had no room for it.", "Try again after Retry-After; tell us if it goes on."),
    Code.MODEL_COLD: (
        "No replica was ready, and the call did not wait for one any longer.",
        "Try again after Retry-After, allow a longer wait, or keep a replica ready.",
    ),
    Code.MODEL_PAUSED: ("The model is paused by its owner.", "Ask its owner to resume it."),
    Code.REPLICA_LOST: ("The replica was lost while it worked on it.", _OURS),
    Code.QUEUE_TIMEOUT: ("It waited for its turn until its time was over.", "Try again when there is less to do."),
    Code.SPOOL_FULL: ("Usage could not be recorded, so nothing was admitted.", _OURS),
    Code.REQUEST_FAILED: ("The replica could not go on with it.", _OURS),
    Code.LOGITS_NOT_FINITE: (
        "The version computed numbers that are not finite, so there was no token to draw.",
        "Go back to the version before: the weights or the precision of this one are at fault.",
    ),
    Code.SHUTTING_DOWN: ("What served it was shutting down.", "Try again: another takes the call."),
    Code.INTERNAL: ("Something went wrong on our side.", _OURS),
}  # fmt: skip


def meaning(code: str) -> Meaning | None:
    """Return what an error code says; None where there was no error."""
    if not code:
        return None
    found = next((entry for entry in Code if entry.code == code), None)
    if found is None:
        return Meaning("This code is not in the catalogue of errors.", "Send us the request’s id.")
    return Meaning(*_MEANINGS[found], found.status)
