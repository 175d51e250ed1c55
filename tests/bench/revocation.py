"""Measure revocations on a product of one's own: from the answer of the call that revokes a key to its end everywhere.

Each of the keys runs a stream when it is revoked. ``refused_ms`` is when the gateway first answers 401 to it, and
``cut_ms`` when its stream has ended with the error ``key_revoked``. The promises: p99 of the first within 1 s, all of
the second within 5 s. Takes some minutes: ``PYTHONPATH=tests python tests/bench/revocation.py``.
"""

import argparse
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from running_stack import running_stack

_REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_S = 0.005
_DEADLINE_S = 60.0
_MAX_TOKENS = 1800
_REFUSED_WITHIN_MS = 1000.0
_CUT_WITHIN_MS = 5000.0


def main() -> int:
    """Measure, write the report, and fail where a promise is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--revocations", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--out", type=Path, default=_REPOSITORY / "var" / "bench" / "revocation.json")
    arguments = parser.parse_args()
    with running_stack() as product:
        product.serving_replica()
        rows = _measure(product.details, arguments.revocations, arguments.at_once)
    figures = {name: _summary([row[name] for row in rows]) for name in ("revoke_ms", "refused_ms", "cut_ms")}
    kept = figures["refused_ms"]["p99"] <= _REFUSED_WITHIN_MS and figures["cut_ms"]["max"] <= _CUT_WITHIN_MS
    report = {"revocations": len(rows), "cpus": os.cpu_count(), "kept": kept, **figures}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report | {"rows": rows}, indent=2))
    print(json.dumps(report, indent=2))
    return 0 if kept else 1


def _measure(details: dict[str, str], revocations: int, at_once: int) -> list[dict[str, float]]:
    numbers = itertools.count(1)

    def work(count: int) -> list[dict[str, float]]:
        with _signed_in(details) as owner, httpx.Client(base_url=details["gateway_url"], timeout=120) as gateway:
            return [_revoke_one(details, owner, gateway, next(numbers)) for _ in range(count)]

    parts = [len(range(first, revocations, at_once)) for first in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        return [row for rows in pool.map(work, parts) for row in rows]


def _revoke_one(details: dict[str, str], owner: httpx.Client, gateway: httpx.Client, number: int) -> dict[str, float]:
    issued = _done(owner.post("keys", json={"name": f"revocation {number}", "lifetime_days": 1}))
    headers = {"authorization": f"Bearer {issued['text']}"}
    _until(lambda: gateway.get("/models", headers=headers).status_code == httpx.codes.OK, "a new key to be known")
    stream = _Stream(details, headers)
    stream.begun.wait(_DEADLINE_S)
    called_s = time.monotonic()
    _done(owner.post(f"keys/{issued['key']['id']}/revoke"))
    revoked_s = time.monotonic()
    _until(lambda: gateway.get("/models", headers=headers).status_code == httpx.codes.UNAUTHORIZED, "a refusal")
    refused_s = time.monotonic()
    stream.join(_DEADLINE_S)
    if stream.error_code != "key_revoked":
        raise SystemExit(f"the stream of key {number} ended with {stream.error_code!r}")
    return {
        "revoke_ms": round((revoked_s - called_s) * 1000, 1),
        "refused_ms": round((refused_s - revoked_s) * 1000, 1),
        "cut_ms": round(max(0.0, stream.ended_s - revoked_s) * 1000, 1),
    }


class _Stream(threading.Thread):
    """A stream that would go on for long. ``begun`` is set with its first event."""

    def __init__(self, details: dict[str, str], headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.error_code = ""
        self.ended_s = math.inf
        self._url = f"{details['gateway_url']}/completions"
        self._body = {
            "model": details["model"], "prompt": "Once upon a time", "max_tokens": _MAX_TOKENS, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        self._headers = headers
        self.start()

    def run(self) -> None:
        """Read to the end."""
        with httpx.stream("POST", self._url, json=self._body, headers=self._headers, timeout=120) as answer:
            for event in _events(answer):
                self.error_code = event.get("error", {}).get("code", "")
                self.begun.set()
        self.ended_s = time.monotonic()


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@contextmanager
def _signed_in(details: dict[str, str]) -> Iterator[httpx.Client]:
    """Yield a client of the API in the session of the tenant's owner."""
    with httpx.Client(base_url=details["console_url"], timeout=60, follow_redirects=True) as client:
        client.get("/account/login/")
        client.post(
            "/account/login/",
            data={
                "login": details["user_email"],
                "password": details["user_password"],
                "csrfmiddlewaretoken": client.cookies["pagoda_csrf"],
            },
        )
        client.headers["x-csrftoken"] = client.cookies["pagoda_csrf"]
        client.base_url = httpx.URL(details["api_url"])
        client.params = httpx.QueryParams(tenant=details["tenant"])
        yield client


def _done(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise SystemExit(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}")
    found: dict[str, Any] = answer.json()
    return found


def _until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not holds():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited {_DEADLINE_S:.0f} s for {what}")
        time.sleep(_POLL_S)


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Return figures by nearest rank: each was measured."""
    ordered = sorted(values)
    rank = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {**rank, "max": ordered[-1]}


if __name__ == "__main__":
    sys.exit(main())
