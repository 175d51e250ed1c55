"""Fairness: the engine's rule beside others, on the suites of a paper, on known attacks, and on open questions.

Service is what the model computed for a tenant for the first time, in prompt tokens (an output token counts twice).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from dataplane.sim.plots import Chart, Line
from dataplane.sim.policies import POLICIES, Policy
from dataplane.sim.questions import questions
from dataplane.sim.scenario import Scenario, Tried, try_all
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
    scale = Scale(study.costs, len(study.calls) / _CALLS)

    def tried(tries: Iterable[Scenario]) -> dict[str, Any]:
        return {each.name: _report(each, try_all(each, POLICIES, study.costs, study.seed)) for each in tries}

    paper, attacks = suites(study.costs, _REQUESTS_PER_CALL * len(study.calls)), scenarios(study.costs, scale.length)
    suite_reports = {each.name: try_all(each, POLICIES, study.costs, study.seed) for each in paper}
    report = {
        "seed": study.seed,
        "requests_in_a_suite": _REQUESTS_PER_CALL * len(study.calls),
        "step_ms": {str(tokens): ms for tokens, ms in study.costs.points},
        "suites": {each.name: _report(each, suite_reports[each.name], over_time=True) for each in paper},
        "scenarios": tried(attacks),
        "questions": [
            {"asks": question.asks, "scenario": question.scenario.name}
            | _report(question.scenario, try_all(question.scenario, question.policies, study.costs, study.seed))
            for question in questions(scale)
        ],
        "floods": [_flood(study, scale, times) for times in floods],
    }
    return report | {"table": table(report), "broken": broken(report)}


def _report(scenario: Scenario, tried: dict[str, Tried], *, over_time: bool = False) -> dict[str, Any]:
    policies = {}
    for name, each in tried.items():
        policies[name] = each.report()
        if over_time:
            policies[name]["service_over_time"] = {
                tenant: account.over_time for tenant, account in each.outcome.tenants.items()
            }
    return {"says": scenario.says, "policies": policies}


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


def broken(report: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Return where each policy breaks which promise."""
    policies: dict[str, dict[str, list[str]]] = {policy.name: {} for policy in POLICIES}
    for row in report["table"] if "table" in report else table(report):
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
