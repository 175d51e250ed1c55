"""The things that the routes of the matrix are asked about: one of each kind, all of them acme's.

Whoever adds a route with an argument adds the thing here, under the name of the argument.
"""

from django_fixtures import Personas

from tenants import services
from tenants.actor import member_actor
from tenants.roles import Role, Scope


def build(personas: Personas) -> dict[str, str]:
    """Make the things and return them by the names of URL arguments; besides, the keys' texts."""
    alice, mallory = member_actor(personas.alice, "acme"), member_actor(personas.mallory, "evil")
    issued = services.issue_key(actor=alice, name="of acme", scopes=list(Scope))
    evil = services.issue_key(actor=mallory, name="of evil", scopes=list(Scope))
    invited = services.invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)
    services.playground_key(actor=alice)
    return {
        "tenant": "acme",
        "slug": "acme",
        "key_id": issued.key.id,
        "user_id": personas.carol.id,
        "invitation_id": invited.invitation.id,
        "token": invited.token,
        "acme_key": issued.text,
        "evil_key": evil.text,
    }
