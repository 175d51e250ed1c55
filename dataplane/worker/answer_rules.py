"""What an answer must follow, settled before its request is admitted."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dataplane.contracts.errors import ApiError, Code
from dataplane.text.grammar import CallForm, GrammarRefused
from dataplane.text.grammar_check import GrammarCheck
from dataplane.text.tool_calls import CallReader
from dataplane.worker import structure
from dataplane.worker.parameters import invalid, unsupported
from dataplane.worker.prompts import ChatPrompt
from dataplane.worker.replica import Model, Replica
from dataplane.worker.requests import GenerationRequest
from dataplane.worker.tools import Tools


class Rules(NamedTuple):
    """The grammar of an answer, empty where anything goes; and in which form it calls functions, if it may."""

    grammar: str
    call_form: CallForm | None

    def call_reader(self, tools: Tools | None) -> Callable[[], CallReader] | None:
        """Return what makes a reader of the calls in one answer; None where there are none to read."""
        if tools is None or self.call_form is None:
            return None
        return partial(CallReader, self.call_form, tools.schemas)


class AnswerRules:
    """Settles the rules of requests to one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._check = GrammarCheck()

    async def of(self, request: GenerationRequest, model: Model, tenant_id: str) -> Rules:
        """Return what the answer to ``request`` must follow.

        Raises:
            ApiError: 400: a form of answer that cannot be had, or tools that the model does not take.
        """
        form = await self._call_form(request, tenant_id)
        grammar, field = structure.grammar_of(request.structure, request.tools, form)
        if grammar:
            if request.ignore_eos:
                raise invalid("ignore_eos", f"an answer of the form of {field} ends with that form; leave it out")
            if not model.has_end:
                raise unsupported(field, " by a model without an end token")
            try:
                await self._check.check(grammar, tenant_id=tenant_id)
            except GrammarRefused as error:
                raise structure.refusal(field, str(error)) from error
        return Rules(grammar, form)

    async def _call_form(self, request: GenerationRequest, tenant_id: str) -> CallForm | None:
        has_calls = isinstance(request.prompt, ChatPrompt) and request.prompt.has_calls
        if not (request.tools or has_calls):
            return None
        try:
            return await self._replica.tokenizer.call_form(tenant_id=tenant_id)
        except ApiError as error:
            if error.code is not Code.UNSUPPORTED_PARAMETER:
                raise
            raise ApiError(error.code, error.message, param="tools" if request.tools else "messages") from error
