"""Says before a request is admitted whether its grammar can be used: each is tried in a throw-away process.

Verdicts are kept by tenant and digest. A tenant has one trial at a time, and all share one: who sends many new grammars
delays another tenant by one of them.
"""

import asyncio
import contextlib
import hashlib
import signal
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator

import structlog

from dataplane.text.grammar import GrammarRefused

_log = structlog.get_logger(__name__)

_MAX_VERDICTS = 4096
_TRIAL_TIMEOUT_S = 60.0
"""A wall for what the trial's own limit of processor time does not see; a busy machine is not to meet it."""


class GrammarCheck:
    """Tries grammars, each once."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._tenants: dict[str, _Turn] = {}
        self._trial = asyncio.Lock()
        self.trials = 0

    async def check(self, grammar: str, *, tenant_id: str) -> None:
        """Return when ``grammar`` is known to be one that can be used.

        Raises:
            GrammarRefused: it cannot; the message says why.
        """
        raw = grammar.encode()
        key = (tenant_id, hashlib.sha256(raw).digest())
        async with self._turn(tenant_id):
            wrong = self._verdicts.get(key)
            if wrong is None:
                async with self._trial:
                    wrong = await self._try(raw)
                self._verdicts[key] = wrong
                if len(self._verdicts) > _MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
            self._verdicts.move_to_end(key)
        if wrong:
            raise GrammarRefused(wrong)

    @contextlib.asynccontextmanager
    async def _turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Wait for the tenant's turn; the last of them leaves nothing behind."""
        turn = self._tenants.setdefault(tenant_id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._tenants[tenant_id]

    async def _try(self, grammar: bytes) -> str:
        """Return why ``grammar`` cannot be used, or nothing."""
        self.trials += 1
        # No environment, no descriptors of ours, and no log of its own: an error may quote a tenant's schema.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "dataplane.text.grammar_trial", env={}, start_new_session=True, cwd="/",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_TRIAL_TIMEOUT_S):
                wrong, _ = await process.communicate(grammar)
        except TimeoutError:
            wrong = b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return wrong.decode(errors="replace")
        _log.info("grammar_trial_died", exit_code=process.returncode)
        if process.returncode == -signal.SIGXCPU:
            return "it takes too long to compile"
        return "it takes too much memory or time to compile"


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0
