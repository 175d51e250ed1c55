"""What a share would do is told in numbers before it is set, and changes nothing."""

import pytest
from domain import PLATFORM, deploy
from hypothesis import given
from hypothesis import strategies as st
from isolation_world import Node, load, replica

from controlplane.deployments import selectors
from controlplane.deployments.effect import Held, PoolSize, effect
from controlplane.deployments.services import set_grant
from dataplane.contracts.catalog import EngineSettings, Share
from tenants.actor import member_actor
from tenants.errors import NotFound

POOL = PoolSize(block_size=16, blocks=128, replicas=2, min_replicas=1, longest_tokens=512)
tokens = st.integers(0, 5_000)
shares = st.builds(Share, tokens, st.one_of(st.none(), st.integers(1, 5_000)), st.integers(1, 9))
pools = st.builds(
    PoolSize, st.sampled_from((8, 16)), st.integers(1, 200), st.integers(1, 4), st.integers(1, 4), st.integers(1, 600)
)


@given(shares, st.builds(Held, tokens, tokens, st.integers(0, 9)), pools)
def test_what_is_kept_of_what_is_held_is_within_the_cap_of_all_replicas(share, held, pool):
    told = effect("evil", share, {}, {"evil": held}, pool=pool)
    most = told.limit_tokens
    assert most <= told.cap_tokens * pool.replicas < most + pool.block_size * pool.replicas
    assert held.used_tokens + held.cached_tokens - told.over_tokens <= most
    assert held.used_tokens - told.over_used_tokens <= most
    assert told.evicted_tokens >= 0
    assert told.preempted_at_most == (held.num_requests if held.used_tokens > most else 0)
    assert told.cap_tokens <= pool.blocks * pool.block_size
    assert told.own_largest_tokens <= told.largest_tokens


@given(st.dictionaries(st.sampled_from(("acme", "beta", "evil")), shares), shares, pools)
def test_turns_are_divided_among_all_and_guarantees_are_counted_in_whole_blocks(granted, share, pool):
    told = effect("evil", share, granted, {}, pool=pool)
    others = [each for name, each in granted.items() if name != "evil"]
    assert told.turns == pytest.approx(100 * share.weight / (share.weight + sum(each.weight for each in others)))
    assert told.guaranteed_tokens >= share.guarantee_tokens + sum(each.guarantee_tokens for each in others)
    assert told.guaranteed_tokens % pool.block_size == 0
    assert told.leaves_room == (told.room_tokens >= told.largest_tokens)


def test_a_lowered_cap_tells_what_is_dropped_and_who_may_be_preempted():
    held = {"evil": Held(used_tokens=800, cached_tokens=300, num_requests=3), "acme": Held(900, 0, 2)}
    told = effect("evil", Share(0, 640), {"acme": Share(512), "evil": Share()}, held, pool=POOL)
    assert (told.cap_tokens, told.cap_blocks) == (320, 20)
    assert (told.over_tokens, told.over_used_tokens, told.evicted_tokens) == (460, 160, 300)
    assert (told.preempted_at_most, told.claimable_tokens) == (3, 0)
    assert told.own_largest_tokens == 512  # the parts follow what is asked for: 640 tokens may stand on one replica


def test_a_guarantee_that_grows_tells_what_it_can_claim_of_what_others_have_borrowed():
    held = {"evil": Held(used_tokens=0), "acme": Held(used_tokens=900)}
    granted = {"acme": Share(512), "evil": Share(100)}
    assert effect("evil", Share(300), granted, held, pool=POOL).claimable_tokens == 200
    assert effect("evil", Share(2_000), granted, held, pool=POOL).claimable_tokens == 388
    assert effect("evil", Share(50), granted, held, pool=POOL).claimable_tokens == 0


def test_room_is_told_beside_all_guarantees():
    told = effect("evil", Share(1_500), {"acme": Share(512)}, {}, pool=PoolSize(16, 128, 1, 1, 512))
    assert (told.guaranteed_tokens, told.pool_tokens, told.room_tokens) == (2_016, 2_048, 32)
    assert not told.leaves_room


def test_the_owner_and_the_platform_see_ahead_and_nothing_changes(personas, monkeypatch):
    chat = deploy(personas.acme, max_replicas=2)
    acme = personas.acme
    Node().install(monkeypatch).tell(
        replica("rep_1", chat, load(acme, 40, num_running=2)), replica("rep_2", chat, load(acme, 20, num_paused=1))
    )
    for actor in (PLATFORM, member_actor(personas.alice, "acme")):
        told = selectors.preview_share(actor=actor, deployment_id=chat.id, tenant="acme", share=Share(0, 512))
        assert (told.refusal, told.replicas, told.cap_blocks) == ("", 2, 16)
        assert (told.over_used_tokens, told.preempted_at_most) == (60 * 16 - 512, 3)
        assert (told.largest_tokens, told.own_largest_tokens) == (512, 512)
    pool = selectors.get_pool(actor=PLATFORM, deployment_id=chat.id)
    assert [grant.share.cap_tokens for grant in pool.grants] == [None]
    mallory = member_actor(personas.mallory, "evil")
    with pytest.raises(NotFound):
        selectors.preview_share(actor=mallory, deployment_id=chat.id, tenant="evil", share=Share())


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Share(100_000), "do not fit a pool of 2048 tokens"),
        (Share(64, 1), "below its guarantee"),
        (Share(weight=0), "from 1 to 1000"),
    ],
)
def test_what_cannot_be_set_says_why_with_the_numbers(share, words, personas):
    chat = deploy(personas.acme)
    told = selectors.preview_share(actor=PLATFORM, deployment_id=chat.id, tenant="evil", share=share)
    assert words in told.refusal


def test_a_context_below_the_models_is_the_largest_request(personas):
    engine = EngineSettings(kv_memory_mb=1, block_size=16, max_model_len=128)
    chat = deploy(personas.acme, engine=engine)
    set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil", share=Share(weight=3))
    told = selectors.preview_share(actor=PLATFORM, deployment_id=chat.id, tenant="evil", share=Share())
    assert (told.largest_tokens, told.turns) == (128, 50.0)
