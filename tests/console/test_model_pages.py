"""Models and versions as people see them."""

from datetime import timedelta

import pytest
from console_world import FRAME_QUERIES, num_queries, page
from django.test import Client
from django.utils import timezone
from domain import PLATFORM, deploy, make_version

from controlplane.registry.lifecycle import set_alias
from controlplane.registry.models import ModelAlias, ModelVersion, StepState, VersionCheck, VersionState
from controlplane.registry.selectors import list_aliases
from tenants.actor import acting_as, member_actor
from tenants.models import Tenant

MOST_QUERIES = 8


def here(version: ModelVersion, rest: str = "") -> str:
    return f"/t/acme/versions/{version.id}{rest}"


def model_url(version: ModelVersion, rest: str = "") -> str:
    return f"/t/acme/models/{version.model_id}{rest}"


def holding(tenant: Tenant, **values: object) -> ModelVersion:
    """Make a ready version that holds something else than the others: it is immutable once it is ready."""
    version = make_version(tenant, state=VersionState.VALIDATING)
    with acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=version.pk).update(**values)
        ModelVersion.objects.filter(pk=version.pk).update(state=VersionState.READY)
    return version


def check(version: ModelVersion, position: int, state: StepState, **values: object) -> None:
    now = timezone.now()
    times = {"started_at": now - timedelta(milliseconds=1500), "ended_at": now} if state != StepState.PENDING else {}
    with acting_as(PLATFORM):
        VersionCheck.objects.create(
            tenant_id=version.tenant_id, version=version, position=position, name=f"check{position}",
            title=f"Check number {position}", state=state, **times, **values,
        )  # fmt: skip


@pytest.fixture
def version(personas) -> ModelVersion:
    return make_version(personas.acme)


@pytest.fixture
def validating(personas) -> ModelVersion:
    version = make_version(personas.acme, state=VersionState.VALIDATING)
    check(version, 0, StepState.PASSED)
    check(version, 1, StepState.RUNNING)
    check(version, 2, StepState.PENDING)
    return version


@pytest.fixture
def proven_alice(proven) -> Client:
    return proven("alice")


# --- Models


def test_before_there_is_a_model_the_page_says_what_to_do(alice, signed_in):
    assert "Upload a model" in page(alice, "/t/acme/models")
    text = page(signed_in("carol"), "/t/acme/models")
    assert "can upload one" in text
    assert "uploads/new" not in text


def test_models_are_listed_with_their_newest_version(alice, version, personas):
    newer = make_version(personas.acme, state=VersionState.REJECTED)
    text = page(alice, "/t/acme/models")
    assert model_url(version) in text
    assert here(newer) in text
    assert "Rejected" in text


def test_a_model_shows_its_versions_with_states_lineage_and_what_to_do(alice, version, personas):
    holding(personas.acme, derived_from=version, derivation="quantised to int8")
    text = page(alice, model_url(version))
    assert "quantised to int8 from" in text
    assert f"/t/acme/deployments/new?version={version.id}" in text
    assert "?model=tiny" in text


def test_who_may_change_nothing_is_offered_no_change(signed_in, version):
    carol = signed_in("carol")
    assert "Set the alias" not in page(carol, model_url(version))
    text = page(carol, here(version))
    assert "Danger zone" not in text
    assert "Deploy this version" not in text


def test_the_navigation_says_that_versions_and_uploads_belong_to_models(alice, version):
    for url in ("/t/acme/models", model_url(version), here(version), "/t/acme/uploads/new"):
        assert 'aria-current="page">Models</a>' in page(alice, url)


# --- Aliases


def test_an_alias_is_made_moved_and_ended_by_its_name(alice, version, personas):
    newer = make_version(personas.acme)
    url = model_url(version, "/aliases")
    for each in (version, newer):
        assert alice.post(url, {"name": "stable", "version_id": each.id}).status_code == 302
        (alias,) = list_aliases(actor=member_actor(personas.alice, "acme"), model_id=version.model_id)
        assert alias.version_id == each.id
    text = page(alice, model_url(version))
    assert f"tiny@stable is version {newer.number} from now on." in text
    assert "@stable" in page(alice, here(newer))
    assert "name@stable" in page(alice, f"{url}/stable/delete")
    assert alice.post(f"{url}/stable/delete", {"confirm": "stabel"}).status_code == 422
    assert alice.post(f"{url}/stable/delete", {"confirm": "stable"}).status_code == 302
    with acting_as(PLATFORM):
        assert not ModelAlias.objects.exists()
    assert alice.get(f"{url}/stable/delete").status_code == 404


@pytest.mark.parametrize(
    ("name", "words"), [("Not A Name", "Use 1 to 32 of"), ("7", "Use 1 to 32 of"), ("", "This field is required")]
)
def test_a_name_that_cannot_be_an_alias_is_refused_at_its_field(name, words, alice, version):
    answer = alice.post(model_url(version, "/aliases"), {"name": name, "version_id": version.id})
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_only_ready_versions_of_the_model_can_be_named(alice, version, personas):
    rejected = make_version(personas.acme, state=VersionState.REJECTED)
    other = make_version(personas.acme, name="other")
    for wrong in (rejected, other):
        answer = alice.post(model_url(version, "/aliases"), {"name": "stable", "version_id": wrong.id})
        assert answer.status_code == 422


# --- A version on its way


def test_the_checklist_shows_where_the_validation_is(alice, validating):
    text = page(alice, here(validating))
    assert "1 of 3 ended" in text
    assert "1,500 ms, passed" in text
    assert 'class="running"' in text
    assert "data-poll" in text
    assert "Danger zone" not in text
    part = page(alice, here(validating), hx_request="true")
    assert "<html" not in part
    assert "Check 2 of 3: Check number 1." in part


def test_the_live_part_of_a_version_on_its_way_is_the_same_while_nothing_happens(alice, validating):
    first, second = (page(alice, here(validating), hx_request="true") for _ in range(2))
    assert first == second


def test_a_rejected_version_says_why_and_what_to_do(alice, personas):
    rejected = make_version(personas.acme, state=VersionState.REJECTED)
    reason, mend = "layer 3 has <NaN>.", "Train it again."
    check(rejected, 3, StepState.FAILED, reason=reason, mend=mend)
    check(rejected, 4, StepState.NOT_RUN)
    text = page(alice, here(rejected))
    assert "layer 3 has &lt;NaN&gt;." in text
    assert mend in text
    assert 'class="failed"' in text
    assert "Upload again" in text
    assert "data-poll" not in text


# --- What a version holds


def test_a_ready_version_tells_what_it_holds_and_where_it_fits(alice, version):
    text = page(alice, here(version))
    for words in ("A Llama of 2 layers", version.digest, "tokens in fp32", "none stated", "imported by the platform"):
        assert words in text
    assert f"/t/acme/deployments/new?version={version.id}" in text


def test_the_files_have_their_digests(alice, version):
    text = page(alice, here(version, "?tab=files"))
    for file in version.files.select_related("artifact"):
        assert file.artifact.sha256 in text


def test_a_model_card_is_shown_without_what_could_run(alice, personas):
    version = holding(
        personas.acme,
        card='<h1>Tiny</h1><script>alert(1)</script><img src="//e" onerror="x()"><a href="/t/acme">in</a>',
    )
    text = page(alice, here(version, "?tab=card"))
    assert "<h1>Tiny</h1>" in text
    card = text.split('class="prose')[1].split("</section>")[0]
    for hostile in ("script", "img", "onerror", "/t/acme"):
        assert hostile not in card


def test_two_versions_are_compared_field_by_field_and_file_by_file(alice, version, personas):
    newer = holding(personas.acme, num_parameters=200_000, config={**version.config, "num_layers": 4})
    text = page(alice, here(newer, f"?tab=compare&since={version.id}"))
    for words in ("Parameters", "100,000", "200,000", "Layers", "model.safetensors", "Changed"):
        assert words in text


@pytest.mark.parametrize("tab", ["files", "card", "compare"])
def test_a_version_of_which_nothing_is_known_yet_has_every_tab(tab, alice, validating):
    assert "None" not in page(alice, here(validating, f"?tab={tab}"))


def test_a_tab_that_is_none_is_no_page(alice, version):
    page(alice, here(version, "?tab=secrets"), status=404)


# --- Its end


def test_archiving_wants_the_name_and_leaves_what_serves_it(alice, version, personas):
    deploy(personas.acme, version=version)
    name = f"tiny v{version.number}"
    assert "the deployment chat" in page(alice, here(version, "/archive"))
    assert alice.post(here(version, "/archive"), {"confirm": "tiny"}).status_code == 422
    assert alice.post(here(version, "/archive"), {"confirm": name}).status_code == 302
    text = page(alice, here(version))
    assert "is archived" in text
    assert "Deploy this version" not in text
    answer = alice.post(here(version, "/archive"), {"confirm": name})
    assert answer.status_code == 422
    assert "cannot become archived" in answer.content.decode()


def test_deleting_names_what_depends_on_the_version_and_is_refused_until_nothing_does(proven_alice, version, personas):
    name, url = f"tiny v{version.number}", here(version, "/delete")
    alice = member_actor(personas.alice, "acme")
    set_alias(actor=alice, model_id=version.model_id, name="stable", version_id=version.id)
    assert "the alias stable" in page(proven_alice, url)
    answer = proven_alice.post(url, {"confirm": name})
    assert answer.status_code == 422
    assert "in use by the alias stable" in answer.content.decode()
    proven_alice.post(model_url(version, "/aliases/stable/delete"), {"confirm": "stable"})
    assert "no alias names it" in page(proven_alice, url)
    assert proven_alice.post(url, {"confirm": name}).status_code == 302
    assert "No version is left" in page(proven_alice, model_url(version))
    text = page(proven_alice, here(version))
    assert "Deleted" in text
    assert "Danger zone" not in text


# --- How often the database is asked


@pytest.mark.parametrize("url", ["/t/acme/models", "model", "version", "?tab=files", "?tab=card", "?tab=compare"])
def test_a_page_asks_the_database_as_often_for_much_as_for_little(url, alice, version, personas):
    check(version, 0, StepState.PASSED)
    make_version(personas.acme)
    url = {"model": model_url(version), "version": here(version)}.get(url, url)
    url = here(version, url) if url.startswith("?") else url
    few = num_queries(alice, url)
    assert few <= FRAME_QUERIES + MOST_QUERIES
    for number in range(3):
        more = make_version(personas.acme)
        set_alias(
            actor=member_actor(personas.alice, "acme"), model_id=more.model_id, name=f"a{number}", version_id=more.id
        )  # fmt: skip
        check(version, number + 1, StepState.PASSED)
    assert num_queries(alice, url) == few
