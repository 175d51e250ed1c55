"""Fairness: the engine's rule beside others, on the suites of a paper, on known attacks, and on open questions.

Service is what the model computed for a tenant for the first time, in prompt tokens (an output token counts twice).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from dataplane.sim.plots import Chart, Line
from dataplane.sim.policies import POLICIES, Policy
from dataplane.sim.questions import questions
from dataplane.sim.scenario import Scenario, try_all
from dataplane.sim.scenarios import Scale, flood, scenarios
from dataplane.sim.study import Study
from dataplane.sim.suites import suites

FLOODS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Loads of the one that floods, as parts of its share."""
_REQUESTS_PER_CALL = 2
_CALLS = 256
"""With so many a study's scenarios are as long as they are meant to be."""


def run(study: Study, floods: Sequence[float] = FLOODS) -> dict[str, Any]:
    """Try every policy on everything; the more calls the study has, the longer.

    Raises:
        ValueError: the study's calls are from a trace.
    """
    if study.source != "mixed":
        raise ValueError(f"fairness draws its own calls and cannot serve those of {study.source}: leave the trace out")
    scale, requests = Scale(study.costs, len(study.calls) / _CALLS), _REQUESTS_PER_CALL * len(study.calls)
    report = {
        "seed": study.seed,
        "requests_in_a_suite": requests,
        "step_ms": {str(tokens): ms for tokens, ms in study.costs.points},
        "suites": {each.name: _tried(study, each, over_time=True) for each in suites(study.costs, requests)},
        "scenarios": {each.name: _tried(study, each) for each in scenarios(scale)},
        "questions": [
            {"asks": each.asks, "scenario": each.scenario.name} | _tried(study, each.scenario, each.policies)
            for each in questions(scale)
        ],
        "floods": [_flood(study, scale, times) for times in floods],
    }
    rows = table(report)
    return report | {"table": rows, "broken": broken(rows)}


def _tried(
    study: Study, scenario: Scenario, policies: Sequence[Policy] = POLICIES, *, over_time: bool = False
) -> dict[str, Any]:
    reports = {}
    for name, each in try_all(scenario, policies, study.costs, study.seed).items():
        reports[name] = each.report()
        if over_time:
            accounts = each.outcome.tenants.items()
            reports[name]["service_over_time"] = {tenant: account.over_time for tenant, account in accounts}
    return {"says": scenario.says, "policies": reports}


def _flood(study: Study, scale: Scale, times: float) -> dict[str, Any]:
    scenario = flood(scale, times)
    tried = try_all(scenario, POLICIES, study.costs, study.seed)
    return {
        "times": times,
        "ttft_p95_s": {name: round(each.outcome.ttft_s(scenario.victims, 0.95), 3) for name, each in tried.items()},
    }


def table(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each scenario and policy: its figures, and the promises that it breaks."""
    rows = []
    for name, tried in {**report["suites"], **report["scenarios"]}.items():
        for policy, figures in tried["policies"].items():
            tenants = figures["tenants"].values()
            rows.append(
                {
                    "scenario": name,
                    "policy": policy,
                    "units_per_s": figures["units_per_s"],
                    "gap_of_bound": figures["gap_of_bound"],
                    "recomputed": figures["recomputed"],
                    "longest_front_steps": max(tenant["longest_front_steps"] for tenant in tenants),
                    "breaks": figures["breaks"],
                }
            )
    return rows


def broken(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return where each policy breaks which promise, from the rows of :func:`table`."""
    policies: dict[str, dict[str, list[str]]] = {policy.name: {} for policy in POLICIES}
    for row in rows:
        for promise in row["breaks"]:
            policies[row["policy"]].setdefault(promise, []).append(row["scenario"])
    return policies


def charts(report: dict[str, Any]) -> dict[str, Chart]:
    """Draw the report."""
    suites_ = report["suites"]

    def served(suite: str, policy: Policy, tenant: str) -> list[tuple[float, float]]:
        return [tuple(point) for point in suites_[suite]["policies"][policy.name]["service_over_time"][tenant]]

    def apart(policy: Policy) -> Line:
        pairs = zip(served("overload", policy, "one"), served("overload", policy, "two"), strict=True)
        return Line(policy.name, [(now_s, abs(one - two)) for (now_s, one), (_, two) in pairs])

    def service(suite: str) -> Chart:
        lines = [Line(policy.name, served(suite, policy, "one")) for policy in POLICIES]
        return Chart(f"{suite.capitalize()}: service of the tenant below its share", "seconds", "units", lines)

    floods = report["floods"]
    return {
        "overload": Chart(
            "Overload: how far two tenants' service drifts apart",
            "seconds",
            "units",
            [apart(each) for each in POLICIES],
        ),
        "on-off": service("on and off"),
        "increasing": service("increasing"),
        "shift": service("distribution shift"),
        "flood": Chart(
            "Time to first token of three tenants within their shares, 95th percentile",
            "load of the fourth, as a part of its share",
            "seconds",
            [Line(each.name, [(row["times"], row["ttft_p95_s"][each.name]) for row in floods]) for each in POLICIES],
            log_x=True,
            log_y=True,
        ),
    }
