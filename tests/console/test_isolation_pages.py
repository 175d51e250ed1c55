"""What a tenant is shown of its isolation, in plain words first; what the platform is; a share before it is set."""

import re
from datetime import timedelta

import pytest
from console_world import FRAME_QUERIES, PLATFORM_FRAME_QUERIES, num_queries, page
from domain import PLATFORM, deploy
from isolation_world import Node, alike, apart, load, probe, replica, sound

from controlplane.deployments.selectors import get_pool
from controlplane.deployments.services import set_grant
from dataplane.contracts.catalog import Share
from dataplane.contracts.probes import ProbeKind

KEPT = "Nobody else’s requests have slowed yours beyond their share. Here is how we know."
SHARE = {"tenant": "evil", "guarantee_tokens": "0", "cap_tokens": "64", "weight": "1"}


@pytest.fixture
def node(monkeypatch) -> Node:
    return Node().install(monkeypatch)


@pytest.fixture
def chat(personas):
    return deploy(personas.acme)


@pytest.fixture
def shared(chat):
    set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil", share=Share(128, 1024, 3))
    return chat


def here(deployment, tenant: str = "acme") -> str:
    return f"/t/{tenant}/deployments/{deployment.id}/isolation"


def badges(text: str) -> list[str]:
    """What stands beside the three promises."""
    return re.findall(r'<dd><span class="badge \w+">([^<]+)</span>', text)[:3]


def test_before_anything_is_measured_the_page_says_so_and_claims_nothing(alice, shared):
    text = page(alice, here(shared))
    assert "There is something that is not measured yet." in text
    assert badges(text) == ["Not measured yet"] * 3
    assert "Figures come within seconds once one is ready." in text
    assert text.count("No probe of this kind has ended yet.") == 2
    assert KEPT not in text


def test_it_says_in_plain_words_that_isolation_is_kept_and_shows_how_that_is_known(alice, shared, node, personas):
    counted = {"preemptions": {"reclaim": 2, "own": 1}, "prefix_queries_tokens": 200, "prefix_hits_tokens": 150}
    gap = {"service_gap_units": 1_200.0, "service_bound_units": 4_800.0, "served_units": 900.0, "pauses": 7}
    probes = (*sound(shared), probe(shared, ProbeKind.BATCH, *apart()), probe(shared, ProbeKind.PACED, *alike()))
    node.tell(replica("rep_1", shared, load(personas.acme, 20, peak_owned_blocks=40, **counted, **gap)), probes=probes)
    text = page(alice, here(shared))
    assert KEPT in text
    assert badges(text) == ["Kept"] * 3
    for words in (
        "another tenant got 1,200 weighted tokens ahead of you at most",
        "The bound that is proven is 4,800",
        "Peak</dt><dd>640<",
        "75 % <small>of your prompts",
        "Borrowed 256",
        "Claimed back</dt><dd><strong>2</strong>",
        "By your own</dt><dd><strong>1</strong>",
        "Paused</dt><dd><strong>7</strong>",
        "Lost to another tenant. The promise is none.",
        "1,200 of 4,800",
        "0.500 (0.4",
        "1.000 (0.99",
        "guarantee 512",
        "Paced emission",
        "A deployment of your own",
        "/t/acme/deployments/new",
    ):
        assert words in text, words


def test_a_guest_sees_its_own_figures_and_the_probes_and_is_not_told_when_they_gave_way(
    signed_in, shared, node, personas
):
    owners, own = load(personas.acme, 99), load(personas.evil, 8)
    node.tell(
        replica("rep_1", shared, owners, own),
        probes=(*sound(shared), probe(shared, ProbeKind.BATCH, *apart(), given_up=41)),
    )
    text = page(signed_in("mallory"), here(shared, "evil"))
    assert KEPT in text
    assert "In use now</dt><dd>128<" in text
    assert "Within the guarantee 64" in text
    assert "1,584" not in text
    assert "Given up" not in text
    assert "Settings" not in text


def test_probes_that_fail_their_control_are_said_to_prove_nothing(alice, shared, node, personas):
    blind = probe(shared, ProbeKind.WITHIN, *alike())
    node.tell(replica("rep_1", shared, load(personas.acme, 1)), probes=(sound(shared)[0], blind))
    text = page(alice, here(shared))
    assert "The probes fail their own control, so they prove nothing." in text
    assert badges(text) == ["Kept", "Kept", "Proves nothing"]
    assert "What they say of other tenants counts for nothing until they do." in text


def test_figures_that_are_old_say_so(alice, chat, node, personas):
    node.tell(replica("rep_1", chat, load(personas.acme, 1)), probes=sound(chat))
    node.now += timedelta(hours=2)
    text = page(alice, here(chat))
    assert "These figures are old." in text
    assert badges(text) == ["Old", "Old", "Kept"]
    assert "In use now</dt><dd>–<" in text


def test_a_broken_promise_is_named_before_all_else(alice, chat, node, personas):
    node.tell(replica("rep_1", chat, load(personas.acme, 1, within_guarantee_preemptions=2)))
    text = page(alice, here(chat))
    assert "A promise was broken." in text
    assert "You lost memory to another tenant 2 times while you were within your guarantee." in text


def test_who_is_alone_on_a_deployment_is_told_that_nobody_shares_its_batches(alice, signed_in, chat):
    text = page(alice, here(chat))
    assert "its batches hold your requests alone" in text
    assert "nobody could look" in text
    assert text.count("No probe runs while one tenant alone may call it.") == 2
    set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil", share=Share())
    assert "its batches hold your requests alone" not in page(alice, here(chat))
    assert "its batches hold your requests alone" not in page(signed_in("mallory"), here(chat, "evil"))


def test_a_range_is_chosen_in_the_address_and_the_live_part_keeps_it(alice, chat, node, personas):
    node.tell(replica("rep_1", chat, load(personas.acme, 1)))
    assert 'aria-current="true">24 hours' in page(alice, here(chat))
    assert 'aria-current="true">24 hours' in page(alice, f"{here(chat)}?range=1y")
    text = page(alice, f"{here(chat)}?range=1h")
    assert 'aria-current="true">1 hour' in text
    assert 'hx-get="' + f"{here(chat)}?range=1h" in text
    assert "09:00" in text
    part = page(alice, here(chat), hx_request="true")
    assert "<html" not in part
    assert "Your memory" in part


def test_the_deployments_page_leads_there_and_strangers_find_nothing(alice, signed_in, chat):
    assert f'href="{here(chat)}">Isolation' in page(alice, f"/t/acme/deployments/{chat.id}")
    page(signed_in("mallory"), here(chat, "evil"), status=404)
    page(signed_in("mallory"), here(chat), status=404)


def test_the_platform_sees_every_tenant_and_what_no_tenant_is_told(root, shared, node, personas):
    node.tell(
        replica("rep_1", shared, load(personas.acme, 99), load(personas.evil, 8)),
        probes=(*sound(shared), probe(shared, ProbeKind.BATCH, *apart(), given_up=41)),
    )
    text = page(root, f"/platform/budgets/{shared.id}/isolation")
    for words in ("acme/chat", ">acme<", ">evil<", "1,584", "Given up", ">41<", ">Kept<"):
        assert words in text, words
    assert "No prompt was looked up" in text
    assert f"/platform/budgets/{shared.id}/isolation" in page(root, "/platform/budgets")
    assert "<html" not in page(root, f"/platform/budgets/{shared.id}/isolation", hx_request="true")
    page(root, "/platform/budgets/dep_of_nobody/isolation", status=404)


def test_the_pages_ask_the_database_as_often_for_much_as_for_little(alice, root, shared, node, personas):
    platform = f"/platform/budgets/{shared.id}/isolation"
    for told in ((), (load(personas.acme, 3), load(personas.evil, 3))):
        node.tell(replica("rep_1", shared, *told), probes=sound(shared))
        assert num_queries(alice, here(shared)) == FRAME_QUERIES + 6
        assert num_queries(root, platform) == PLATFORM_FRAME_QUERIES + 5


def share_url(deployment) -> str:
    return f"/platform/budgets/{deployment.id}/share"


def test_a_share_says_what_it_does_before_it_is_set(root, shared, node, personas):
    node.tell(
        replica("rep_1", shared, load(personas.acme, 40), load(personas.evil, 10, cached_blocks=5, num_running=2))
    )
    for act in ({"preview": "1"}, {"check": "1"}):
        answer = root.post(share_url(shared), SHARE | act)
        text = answer.content.decode()
        assert answer.status_code == 200
        for words in (
            "cap 64 (4 blocks)",
            "512 of 2,048 tokens",
            "1,536 left on a replica",
            "64 tokens, prompt and answer together: larger ones are refused",
            "50 % when all want more",
            "176 tokens",
            "80 of its cache are dropped, 96 are in use",
            "at most 2 of its running requests",
        ):
            assert words in text, words
        assert ("<html" in text) == ("check" in act)
    kept = {grant.grantee_slug: grant.share for grant in get_pool(actor=PLATFORM, deployment_id=shared.id).grants}
    assert (kept["evil"].guarantee_tokens, kept["evil"].cap_tokens, kept["evil"].weight) == (128, 1024, 3)


def test_the_form_shows_what_the_share_does_that_is_set(root, shared):
    text = page(root, f"{share_url(shared)}?tenant=evil")
    assert "guarantee 128 tokens (8 blocks of 16), cap 1,024 (64 blocks)" in text
    assert "75 % when all want more" in text
    assert "Choose a tenant and write numbers" in page(root, share_url(shared))


def test_a_share_that_would_be_refused_says_so_before_it_is_set(root, shared):
    fields = SHARE | {"guarantee_tokens": "100000", "cap_tokens": "", "preview": "1"}
    text = root.post(share_url(shared), fields).content.decode()
    assert "It cannot be set." in text
    assert "do not fit a pool of 2048 tokens" in text
    assert "Choose a tenant" in root.post(share_url(shared), fields | {"weight": "heavy"}).content.decode()


def test_a_preview_is_the_platforms_alone(alice, shared):
    assert alice.post(share_url(shared), SHARE | {"preview": "1"}).status_code == 404


def test_a_guarantee_that_leaves_no_room_for_the_largest_request_says_who_waits(root, shared):
    fields = SHARE | {"guarantee_tokens": "1500", "cap_tokens": "", "preview": "1"}
    text = root.post(share_url(shared), fields).content.decode()
    assert "a request of a tenant without one finds 32 tokens; a larger one waits" in text


def test_a_tenant_empties_its_own_cache_and_a_viewer_is_not_offered_it(signed_in, shared):
    mallory = signed_in("mallory")
    assert "Empty my cache" in page(mallory, here(shared, "evil"))
    answer = mallory.post(f"{here(shared, 'evil')}/empty-cache")
    assert answer["Location"] == here(shared, "evil")
    assert "is forgotten within 2 s" in page(mallory, here(shared, "evil"))
    epochs = {
        grant.grantee_slug: grant.cache_epoch for grant in get_pool(actor=PLATFORM, deployment_id=shared.id).grants
    }
    assert epochs == {"acme": 0, "evil": 1}
    assert "Empty my cache" not in page(signed_in("carol"), here(shared))


def test_who_is_paced_already_is_told_at_which_beat(alice, chat):
    share = Share(512, pace_ms=40)
    set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="acme", share=share)
    set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil", share=Share())
    assert "Yours is on: 40 ms." in page(alice, here(chat))
