"""What tests of the rollout pages share: verdicts, the rows of a plan as typed, and addresses."""

import re

from console_world import late
from domain import PLATFORM
from rollout_world import World

from controlplane.metering import services as metering
from controlplane.rollouts.gates import Judgement, Outcome, Summary, Verdict
from controlplane.rollouts.plan import Gate
from tenants.actor import member_actor
from tenants.selectors import list_audit

NOT_RUN = (
    Verdict(gate=Gate.EVALS, outcome=Outcome.NOT_RUN, words="No eval suite was run: this needs the approver's waiver"),
    Verdict(gate=Gate.SHADOW, outcome=Outcome.NOT_RUN, words="No shadow traffic was run"),
)
GOOD = Verdict(
    gate=Gate.ERRORS, outcome=Outcome.PASS, words="failed requests 0.10% against 0.12% (-0.02 pp), limit +0.50 pp",
    effect_words="could have seen +0.61 pp", stable_value=0.0012, candidate_value=0.001, limit=0.005,
    samples_stable=90_000, samples_candidate=1_034, needed=912,
)  # fmt: skip
SLOW = Verdict(
    gate=Gate.TTFT_P95, outcome=Outcome.FAIL, words="p95 TTFT 412 ms against 180 ms (×2.29), limit ×1.15",
    effect_words="could have seen ×1.12", stable_value=180.0, candidate_value=412.0, limit=1.15,
    samples_stable=90_000, samples_candidate=1_034, needed=500,
)  # fmt: skip
WAIVERS = {"waivers.evals": "no suite of ours covers it", "waivers.shadow": "checked by hand"}
ROWS = {
    "of": "little", "rows": "3", "approval": "1", "step0-weight": "5", "step0-hold": "10 min", "step0-samples": "50",
    "step1-weight": "50", "step1-hold": "1 h 30 min", "step1-samples": "60", "step2-weight": "", "step2-hold": "",
    "step2-samples": "", "ramp_s": "60 s", "bake_100_s": "30 min", "keep_previous_s": "1 h",
}  # fmt: skip


def said(outcome: Outcome, *verdicts: Verdict, words: str = "All 1 gates that were run pass.") -> Judgement:
    return Judgement(outcome, (*verdicts, *NOT_RUN), words, Summary(90_000, 108, 2), Summary(1_034, 1, 2))


def here(rollout, act: str = "") -> str:
    return f"/t/acme/rollouts/{rollout.id}{act}"


def new_url(world: World) -> str:
    return f"/t/acme/deployments/{world.deployment.id}/rollouts/new"


def hidden(text: str) -> dict[str, str]:
    """What the form on a page that approves carries."""
    return {name: re.findall(f'name="{name}" value="([^"]*)"', text)[0] for name in ("revision", "step", "digest")}


def verbs(personas, rollout) -> list[str]:
    return [event.verb for event in list_audit(actor=member_actor(personas.alice, "acme"), target=rollout.id)][::-1]


def called(world: World, arms: dict[str, int]) -> None:
    """Have so many requests of each arm settle, a moment ago."""
    versions = {"stable": world.stable.id, "candidate": world.candidate.id}
    lives = [
        late(world.deployment.tenant_id, deployment_id=world.deployment.id, version_id=versions[arm], arm=arm)
        for arm, number in arms.items()
        for _ in range(number)
    ]
    metering.ingest(actor=PLATFORM, records=[record for life in lives for record in life.whole(10)])
