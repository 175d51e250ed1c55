"""Whether each part of the product is well, as a line that says what to do where it is not. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.deployments.selectors import Node, Publishing
from controlplane.jobs.selectors import Beat, Pulse
from controlplane.metering.selectors import Arrivals
from controlplane.servers import Answer, GatewayAnswer
from dataplane.contracts.replica import ReplicaState

WELL, LOOK, DOWN, UNKNOWN = "well", "look here", "down", "unknown"
CLOCK_GRACE = timedelta(seconds=10)
"""The clock ticks each second, and makes what is due at the next tick."""
PUBLISHER_GRACE = timedelta(seconds=10)
"""The publisher is woken by each change, and looks every two seconds besides."""
NODE_GRACE = timedelta(seconds=15)
"""A fleet reports each second."""
ARRIVAL_GRACE_MS = 60_000
SILENT_GRACE = timedelta(minutes=20)
"""Requests that say nothing for 15 minutes are settled by a job every 10 seconds."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the product.

    Args:
        name: what people call it.
        state: one of the four words above.
        words: how it fares, with its number and unit.
        since: since when, None where nobody knows.
        do: what to do; empty where it is well.
    """

    name: str
    state: str
    words: str
    since: datetime | None = None
    do: str = ""


def servers(postgres: Answer, redis: Answer) -> list[Part]:
    """Tell of what every page stands on. That this is read says that the web process and PostgreSQL answer."""
    start_redis = "Start Redis; limits are each gateway’s own until then, and no job is announced."
    return [
        Part("Web", WELL, "It made this page."),
        Part("PostgreSQL", WELL, f"It answered in {postgres.took_ms:,} ms.", postgres.since),
        Part("Redis", WELL, f"It answered in {redis.took_ms:,} ms.", redis.since)
        if not redis.fault
        else Part("Redis", DOWN, f"It does not answer ({redis.fault}).", None, start_redis),
    ]


def clock(beats: Sequence[Beat], now: datetime) -> Part:
    """Tell whether the clock of the jobs ticks."""
    start = "See that beat and worker run. A worker full of long jobs keeps the clock waiting, too."
    ticked = [beat.ticked_at for beat in beats if beat.ticked_at is not None]
    if not ticked:
        return Part("Clock of the jobs", UNKNOWN, "It has never ticked.", None, start)
    late = [beat.next_run_at for beat in beats if beat.next_run_at and now - beat.next_run_at > CLOCK_GRACE]
    if late:
        behind_s = int((now - min(late)).total_seconds())
        return Part(
            "Clock of the jobs", DOWN, f"It stands still; what was due is {behind_s:,} s late.", min(late), start
        )
    return Part("Clock of the jobs", WELL, f"It ticks; {len(beats)} kinds of jobs are on it.", max(ticked))


def jobs(found: Pulse) -> list[Part]:
    """Tell of jobs that wait for a worker, and of those that nobody will do."""
    late, dead = "Jobs that are late", "Jobs that are dead"
    return [
        Part(late, WELL, f"None is due for a minute; {found.running:,} run.")
        if not found.late
        else Part(late, LOOK, f"{found.late:,} due for over a minute.", found.late_since, "Start a worker, or more."),
        Part(dead, WELL, "None.")
        if not found.dead
        else Part(dead, LOOK, f"{found.dead:,} failed for good.", found.dead_since, "Read why on Jobs, then retry."),
    ]


def publishing(found: Publishing, now: datetime) -> Part:
    """Tell how far gateways and fleet may be behind what was committed."""
    since, number = (
        found.waiting_since,
        f"Catalog {found.number:,} is the latest" if found.number else "None is made yet",
    )
    if since is None or now - since <= PUBLISHER_GRACE:
        return Part("Publisher", WELL, f"{number}; {found.waiting:,} changes wait.")
    words = f"{number}; {found.waiting:,} changes wait, the oldest for {_seconds(now - since)}."
    do = "Start the publisher. Gateways ask for the catalog themselves while it is away."
    return Part("Publisher", DOWN, words, since, do)


def gateway(said: GatewayAnswer, latest: int) -> Part:
    """Tell of the gateway that answered; which catalog the others apply is unknown here."""
    if said.fault:
        do = "Start a gateway, or see that this server reaches its address."
        return Part("Gateway", DOWN, f"It does not answer ({said.fault}).", None, do)
    words = f"The one that answered, in {said.took_ms:,} ms, applies catalog {said.catalog or 0:,}; others are unknown."
    if said.away:
        return Part("Gateway", LOOK, f"{words} It cannot reach {' and '.join(said.away)}.", None, "See that these run.")
    if (said.catalog or 0) < latest:
        return Part(
            "Gateway", LOOK, words, None, f"The latest is {latest:,}: it follows within seconds, or see its log."
        )
    return Part("Gateway", WELL, words)


def fleet(nodes: Sequence[Node], now: datetime) -> list[Part]:
    """Tell of each node, and of all replicas by their state."""
    if not nodes:
        return [Part("Fleet", UNKNOWN, "No node has ever reported.", None, "Start a fleet process.")]
    return [*(_node(node, now) for node in nodes), _replicas(nodes)]


def _node(node: Node, now: datetime) -> Part:
    silent = now - node.node.seen_at
    name = f"Node {node.node.node}"
    if silent <= NODE_GRACE:
        return Part(name, WELL, f"It reported {_seconds(silent)} ago.")
    words = f"It has been silent for {_seconds(silent)}. Its replicas may serve all the same."
    return Part(name, DOWN, words, node.node.seen_at, "See that its fleet process runs and reaches the control plane.")


def _replicas(nodes: Iterable[Node]) -> Part:
    living = [each for node in nodes for each in node.replicas if each.row.state != ReplicaState.STOPPED]
    failing = [each for each in living if each.report.restarts and each.row.state != ReplicaState.READY]
    counted = Counter(each.row.state for each in living)
    words = ", ".join(
        f"{counted[state]} {state.replace('_', ' ')}" for state in ReplicaState if counted[state]
    )  # fmt: skip
    if not failing:
        return Part("Replicas", WELL, f"{words.capitalize() or 'None'}.")
    since = min(each.row.since for each in failing)
    do = "See their causes on the page Fleet."
    return Part("Replicas", LOOK, f"{words.capitalize()}; {len(failing)} failed to start.", since, do)


def usage(found: Arrivals, now: datetime) -> list[Part]:
    """Tell of records on their way from the spools, and of requests that wait for theirs."""
    return [_records(found), _open(found, now), _aside(found)]


def _records(found: Arrivals) -> Part:
    name = "Usage records"
    if found.newest_at is None or found.newest_late_ms is None:
        return Part(name, UNKNOWN, "None has ever come in.")
    words = f"The newest had been on its way for {max(0, found.newest_late_ms):,} ms."
    if found.newest_late_ms <= ARRIVAL_GRACE_MS:
        return Part(name, WELL, words, found.newest_at)
    do = (
        "Spools are being emptied after an interruption; if it lasts, see gateway and replicas reach the control plane."
    )
    return Part(name, LOOK, words, found.newest_at, do)


def _open(found: Arrivals, now: datetime) -> Part:
    name, words = "Requests not settled", f"{found.open_requests:,} run, or their records are on the way."
    if found.oldest_open_at is None or now - found.oldest_open_at <= SILENT_GRACE:
        return Part(name, WELL, words, found.oldest_open_at)
    return Part(
        name, LOOK, words, found.oldest_open_at, "The job metering.settle_abandoned does not do its work: see Jobs."
    )


def _aside(found: Arrivals) -> Part:
    if not found.set_aside:
        return Part("Records set aside", WELL, "None.")
    words = f"{found.set_aside:,} records that no row could be made of."
    return Part("Records set aside", LOOK, words, None, "Each row of metering_rejectedrecord says why.")


def certificates() -> Part:
    """Tell that there is nothing to run out here."""
    return Part("Certificates", WELL, "None are kept here: TLS ends in front of Pagoda.")


def _seconds(span: timedelta) -> str:
    return f"{max(0, int(span.total_seconds())):,} s"
