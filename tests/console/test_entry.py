import pytest
from django.test import Client

from tenants.models import User


@pytest.mark.parametrize(
    ("name", "place"), [("alice", "/t/acme/"), ("mallory", "/t/evil/"), ("root", "/platform/fleet")]
)
def test_one_lands_where_one_belongs(name, place, signed_in):
    assert signed_in(name).get("/")["Location"] == place


def test_who_belongs_nowhere_is_told_what_to_do(db):
    stray = User.objects.create_user("stray@acme.example", "correct horse battery staple", name="Stray")
    client = Client()
    client.force_login(stray)
    assert "invite stray@acme.example" in client.get("/").content.decode()


def test_a_visitor_is_sent_to_sign_in_and_back(db):
    assert Client().get("/t/acme/usage?by=key")["Location"] == "/account/login/?next=/t/acme/usage%3Fby%3Dkey"


def test_a_live_part_of_an_expired_session_takes_the_whole_page_to_sign_in(db):
    for client, url in ((Client(), "/t/acme/"), (Client(), "/platform/fleet")):
        answer = client.get(url, headers={"hx-request": "true"})
        assert answer.status_code == 204
        assert answer["HX-Redirect"] == f"/account/login/?next={url}"


def test_a_form_sent_by_htmx_goes_on_as_a_whole_page(root):
    answer = root.post(
        "/platform/tenants/acme/suspend", {"confirm": "acme", "reason": "test"}, headers={"hx-request": "true"}
    )
    assert (answer.status_code, answer["HX-Redirect"]) == (204, "/platform/tenants")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_is_drawn_by_the_server(theme, alice):
    answer = alice.post("/theme", {"theme": theme, "next": "/t/acme/usage?by=key"})
    assert answer["Location"] == "/t/acme/usage?by=key"
    cookie = answer.cookies["pagoda_theme"]
    assert (cookie.value, cookie["httponly"], cookie["samesite"]) == (theme, True, "Lax")
    assert f'data-theme="{theme}"' in alice.get("/t/acme/").content.decode()


def test_the_systems_theme_keeps_no_cookie(alice):
    alice.post("/theme", {"theme": "dark"})
    alice.post("/theme", {"theme": "auto"})
    assert "data-theme" not in alice.get("/t/acme/").content.decode()


def test_a_theme_that_does_not_exist_changes_nothing(alice):
    assert "pagoda_theme" not in alice.post("/theme", {"theme": '"><script>'}).cookies
    alice.cookies["pagoda_theme"] = "nonsense"
    assert "nonsense" not in alice.get("/t/acme/").content.decode()


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "\thttps://evil.example",
        "",
    ],
)
def test_choosing_a_theme_leads_to_no_other_site(elsewhere, alice):
    assert alice.post("/theme", {"theme": "dark", "next": elsewhere})["Location"] == "/"


@pytest.mark.parametrize(
    "url", ["/theme", "/t/acme/keys/new", "/t/acme/playground/stream", "/platform/tenants/acme/limits"]
)
def test_a_change_without_the_forms_token_is_refused(url, personas):
    client = Client(enforce_csrf_checks=True)
    client.force_login(personas.alice)
    answer = client.post(url, {"theme": "dark"})
    assert answer.status_code == 403
    assert "no longer valid" in answer.content.decode()


def test_a_page_that_does_not_exist_is_one_of_ours(alice):
    answer = alice.get("/nowhere")
    assert answer.status_code == 404
    assert "There is no such page" in answer.content.decode()
