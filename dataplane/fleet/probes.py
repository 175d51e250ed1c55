"""``python -m dataplane.fleet.probes``: have replicas probed without a pause, and print what was found as JSON.

With ``--socket`` it probes the worker whose trusted door that is, by itself. Without, it has the fleet probe what
several tenants share; its address and secret are in PAGODA_FLEET_URL and PAGODA_INTERNAL_SECRET. For each
deployment and kind of probe there is the area under the ROC curve with its 99 % bounds: ``within`` is the control and
should be near 1, ``across`` is what one tenant sees of another's cache, ``batch`` and ``paced`` what batches tell.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.probes import ProbeKind, ProbeOrder, ProbeProgress, ProbeReport, verdict
from dataplane.fleet.probe_trials import Target
from dataplane.fleet.probing import Prober

_LOOK_S = 2.0
_TIMEOUT_S = 10.0
_TOKENS = ("prompt_tokens", "cached_tokens")


class CannotProbe(Exception):
    """The sentence says why."""


def summary(reports: Iterable[ProbeReport]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what all ``reports`` say together, by deployment and kind."""
    by_kind: dict[tuple[str, ProbeKind], list[ProbeReport]] = defaultdict(list)
    for report in reports:
        by_kind[report.deployment_id, report.kind].append(report)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (deployment_id, kind), known in sorted(by_kind.items()):
        separation = verdict(known)
        told: dict[str, Any] = {} if separation is None else msgspec.structs.asdict(separation)
        told |= {"given_up": sum(report.given_up for report in known)}
        if kind in (ProbeKind.WITHIN, ProbeKind.ACROSS):
            told |= {name: sum(getattr(report, name) for report in known) for name in _TOKENS}
        if kind is ProbeKind.PACED:
            told |= {"pace_ms": known[0].pace_ms}
        found.setdefault(deployment_id or "worker", {})[kind.value] = told
    return found


async def of_worker(socket: Path, samples: int) -> tuple[ProbeReport, ...]:
    """Probe the worker behind ``socket`` until each sample has so many times.

    Raises:
        CannotProbe: it has no model, or one that cannot be probed.
        httpx.HTTPError: nothing answers there.
    """
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=_TIMEOUT_S) as client:
        models = (await client.get("/v1/models")).json()["data"]
    if not models:
        raise CannotProbe("the worker has no model yet")
    prober = Prober(lambda: [Target("worker", socket, models[0]["id"])], share=0)
    prober.order(samples)
    if not await prober.finish():
        raise CannotProbe("the worker's model cannot be probed; the log says why")
    return prober.reports()


async def of_fleet(url: str, secret: str, samples: int) -> tuple[ProbeReport, ...]:
    """Have a fleet probe what several tenants share; return what it has found when that is done.

    Raises:
        CannotProbe: the fleet refuses.
        httpx.HTTPError: it does not answer.
    """
    head = {"authorization": authorization(secret)}
    async with httpx.AsyncClient(base_url=url, headers=head, timeout=_TIMEOUT_S, trust_env=False) as client:
        answer = await client.post("/probes", content=msgspec.json.encode(ProbeOrder(samples)))
        if answer.is_client_error:
            raise CannotProbe(answer.json()["error"]["message"])
        while True:
            answer = (await client.get("/probes")).raise_for_status()
            progress = msgspec.json.decode(answer.content, type=ProbeProgress)
            if not progress.trials_left:
                return progress.reports
            sys.stderr.write(f"\r{progress.trials_left} trials left ")
            await asyncio.sleep(_LOOK_S)


def main() -> int:
    """Probe; return the exit status."""
    parser = argparse.ArgumentParser(description="Probe replicas for what one tenant can learn of another.")
    parser.add_argument("--n", type=int, default=2000, help="times in each sample of the cache's probes (2000)")
    parser.add_argument("--socket", type=Path, help="the trusted door of a worker; without it the fleet is asked")
    arguments = parser.parse_args()
    try:
        if arguments.socket is not None:
            reports = asyncio.run(of_worker(arguments.socket, arguments.n))
        else:
            fleet = os.environ["PAGODA_FLEET_URL"], os.environ["PAGODA_INTERNAL_SECRET"]
            reports = asyncio.run(of_fleet(*fleet, arguments.n))
    except KeyError as error:
        parser.error(f"give --socket, or set {error.args[0]}")
    except (CannotProbe, httpx.HTTPError) as error:
        sys.stderr.write(f"probes: {error}\n")
        return 1
    print(json.dumps(summary(reports), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
