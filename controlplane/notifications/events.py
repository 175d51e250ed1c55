"""What may be announced: the one closed set. Whoever adds an event adds its words here, and a migration's CHECK."""

from enum import StrEnum


class Event(StrEnum):
    """Something that people and their systems want to hear of, named by what it happened to and what happened."""

    ROLLOUT_STARTED = "rollout.started"
    ROLLOUT_AWAITING_APPROVAL = "rollout.awaiting_approval"
    ROLLOUT_PAUSED = "rollout.paused"
    ROLLOUT_ROLLED_BACK = "rollout.rolled_back"
    ROLLOUT_PROMOTED = "rollout.promoted"
    ROLLOUT_ABORTED = "rollout.aborted"
    VERSION_READY = "version.ready"
    VERSION_REJECTED = "version.rejected"
    WEBHOOK_TEST = "webhook.test"


MEANINGS: dict[Event, str] = {
    Event.ROLLOUT_STARTED: "A rollout has started.",
    Event.ROLLOUT_AWAITING_APPROVAL: "A rollout waits for somebody who approves it.",
    Event.ROLLOUT_PAUSED: "A rollout is paused, by a person or for want of traffic to judge by.",
    Event.ROLLOUT_ROLLED_BACK: "A rollout was taken back: the version from before serves all traffic.",
    Event.ROLLOUT_PROMOTED: "A rollout has ended well: the new version serves all traffic.",
    Event.ROLLOUT_ABORTED: "A rollout was given up.",
    Event.VERSION_READY: "An uploaded version passed every check and can be deployed.",
    Event.VERSION_REJECTED: "An uploaded version failed a check and cannot be deployed.",
}
"""The events that a webhook may be sent, each with what it tells. A test is sent when somebody asks for it."""
