"""A folder becomes a model that answers, in a real browser, over connections that break."""

import hashlib
import re
import secrets
from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cutting_proxy import CuttingProxy, cutting_proxy
from photographs import shoot
from playwright.sync_api import Locator, Page, Route, expect
from running_stack import MODEL_DIR, RunningStack
from tiny_models import make_tiny_llama

NUM_CUTS, NUM_RELOADS, LANES = 10, 2, 3
NO_HANDLES = "delete window.showDirectoryPicker; delete window.showOpenFilePicker;"
"""As in a browser that cannot keep hold of files."""
OWN_FOLDER = "window.showDirectoryPicker = () => navigator.storage.getDirectory();"
"""The folder that is chosen is the one that the browser keeps for the page: no dialog can be answered in a test."""

KEEP = """async (files) => {
    const folder = await navigator.storage.getDirectory();
    for (const [name, content] of Object.entries(files)) {
        const file = await (await folder.getFileHandle(name, { create: true })).createWritable();
        await file.write(Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)));
        await file.close();
    }
}"""


@pytest.fixture
def wide_model(tmp_path) -> Path:
    """A random Llama of 13 parts."""
    return make_tiny_llama(
        tmp_path / "small", vocab_size=515, hidden_size=768, intermediate_size=3072, num_layers=3, num_heads=12,
        num_kv_heads=4, head_dim=64,
    )  # fmt: skip


def _path(url: str) -> str:
    return urlsplit(url).path


def choose(page: Page, folder: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a folder").click()
    chooser.value.set_files(folder)


def upload_button(page: Page) -> Locator:
    return page.get_by_role("button", name=re.compile(r"^Upload \d+ files"))


def console_port(product: RunningStack) -> int:
    port = urlsplit(product.details["console_url"]).port
    assert port
    return port


def digests(product: RunningStack, version_id: str) -> dict[str, str]:
    rows = product.query(
        "SELECT file.name, artifact.sha256 FROM registry_versionfile file "
        "JOIN registry_artifact artifact ON artifact.id = file.artifact_id WHERE file.version_id = %s",
        version_id,
    )
    return {row["name"]: row["sha256"] for row in rows}


def digests_of(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.iterdir():
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@pytest.mark.parametrize("which", ["small", pytest.param("bundled", marks=pytest.mark.slow)])
def test_a_folder_is_uploaded_over_broken_connections_validates_and_answers(
    which, visitor, product, wide_model, record_property, shots
):
    folder = wide_model if which == "small" else MODEL_DIR
    name = f"{which}-{secrets.token_hex(2)}"
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    when = {
        "cut_at": [size_bytes * (number + 1) // (NUM_CUTS + 1) for number in range(NUM_CUTS)],
        "hold_at": [size_bytes * 3 // 10, size_bytes * 7 // 10],
    }
    with cutting_proxy(console_port(product), **when) as proxy, visitor.window("user") as page:
        page.add_init_script(NO_HANDLES)
        version_id = upload_through(proxy, page, folder, name)
        num_again = proxy.begun.total() - len(proxy.begun)
        record_property("parts", len(proxy.begun))
        record_property("parts_sent_again", num_again)
        assert proxy.num_cuts == NUM_CUTS
        assert set(proxy.arrived.values()) == {1}, "what has arrived is not sent again"
        assert num_again <= NUM_CUTS + NUM_RELOADS * LANES, "a broken connection costs one part at most"
        validates_live(page)
        assert digests(product, version_id) == digests_of(folder)
        shoot(page, shots / "version-light.png", whole=True)
        deployment = deploys(page, name)
        answers(page, name)
        if which == "bundled":  # the shortest time that the form offers is a minute
            sleeps_when_idle(page, deployment)
            answers(page, name)
        ends(page, deployment, name)
    assert [problem for problem in visitor.problems if "Failed to load resource" not in problem] == []
    visitor.problems.clear()  # the browser logs each connection that breaks


@pytest.fixture
def refused_model(tmp_path) -> Path:
    """A small model of an architecture that is not run."""
    folder = make_tiny_llama(tmp_path / "refused")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "OtherForCausalLM"))
    return folder


def test_an_upload_is_paused_waits_for_the_network_and_goes_on_by_itself_after_a_reload(
    visitor, product, refused_model
):
    half = sum(path.stat().st_size for path in refused_model.iterdir()) // 2
    with cutting_proxy(console_port(product), hold_at=[half, half + 1]) as proxy, visitor.window("user") as page:
        page.add_init_script(OWN_FOLDER)
        page.goto(f"{proxy.url}/t/acme/uploads/new?model=refused")
        page.evaluate(KEEP, {path.name: b64encode(path.read_bytes()).decode() for path in refused_model.iterdir()})
        page.get_by_role("button", name="Choose a folder").click()
        upload_button(page).press("Enter")
        proxy.wait_until_held()
        page.get_by_role("button", name="Pause").press("Enter")
        expect(page.get_by_role("status").filter(has_text="Paused. What has arrived stays.")).to_be_visible()
        page.context.set_offline(True)
        proxy.release()
        page.get_by_role("button", name="Resume").press("Enter")
        expect(page.get_by_role("status").filter(has_text="Connection lost, trying again.")).to_be_visible()
        page.context.set_offline(False)
        proxy.wait_until_held()
        proxy.release()
        page.reload()
        page.wait_for_url(re.compile(r"/versions/ver_"))
        expect(
            page.locator("#live").get_by_text("It cannot be served; the checklist says why and what to do.")
        ).to_be_visible()
        failed = page.locator(".steps .failed")
        expect(failed).to_contain_text("The config is one that we run")
        expect(failed).to_contain_text("OtherForCausalLM")
    visitor.problems.clear()  # the browser logs each connection that breaks


def test_an_upload_that_was_completed_without_the_browser_hearing_of_it_is_shown_as_its_version(visitor, refused_model):
    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    with visitor.window("user") as page:
        page.add_init_script(NO_HANDLES)
        page.route(re.compile(r"/complete\?"), lose_the_answer, times=1)
        page.goto("/t/acme/uploads/new?model=refused")
        choose(page, refused_model)
        upload_button(page).click()
        page.wait_for_url(re.compile(r"/versions/ver_"))
    assert [problem for problem in visitor.problems if "Failed to load resource" not in problem] == []
    visitor.problems.clear()  # the browser logs the answer that was lost, and the 409 of the second try


def test_what_does_not_belong_is_refused_before_anything_is_sent(visitor, refused_model):
    (refused_model / "config.json").unlink()
    (refused_model / "pytorch_model.bin").write_bytes(b"pickle")
    (refused_model / "below").mkdir()
    (refused_model / "below" / "config.json").write_bytes(b"{}")
    (refused_model / "README").write_bytes(b"")
    with visitor.window("user") as page:
        page.add_init_script(NO_HANDLES)
        page.goto("/t/acme/uploads/new?model=refused")
        calls: list[str] = []
        page.on("request", lambda request: "/static/" not in request.url and calls.append(request.url))
        choose(page, refused_model)
        expect(page.get_by_role("row").filter(has_text="pytorch_model.bin")).to_contain_text("loading one runs code")
        expect(page.get_by_role("row").filter(has_text="below/config.json")).to_contain_text("in a folder below")
        expect(page.get_by_role("row").filter(has_text="README")).to_contain_text("It is empty.")
        expect(page.get_by_role("status").filter(has_text="This is missing: config.json.")).to_be_visible()
        expect(upload_button(page)).to_be_hidden()
        assert calls == []


def test_a_folder_that_is_dropped_is_read(visitor, refused_model):
    with visitor.window("user") as page:
        page.goto("/t/acme/uploads/new?model=refused")
        box = page.get_by_role("heading", name="Drop the folder here").bounding_box()
        assert box
        mouse = page.context.new_cdp_session(page)
        for kind in ("dragEnter", "dragOver", "drop"):
            dragged = {"items": [], "files": [str(refused_model)], "dragOperationsMask": 1}
            mouse.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"], "y": box["y"], "data": dragged})
        expect(page.get_by_role("row").filter(has_text="model.safetensors")).to_be_visible()
        expect(page.get_by_role("button", name="Upload 6 files")).to_be_focused()


def test_a_refusal_of_the_server_is_told_in_its_words(visitor, refused_model):
    with visitor.window("user") as page:
        page.add_init_script(NO_HANDLES)
        page.goto("/t/acme/uploads/new?model=Not a name")
        choose(page, refused_model)
        upload_button(page).click()
        expect(page.get_by_role("status").filter(has_text="cannot be the name of a model")).to_be_visible()
        expect(page.get_by_role("combobox", name="Model")).to_be_visible()
    assert [problem for problem in visitor.problems if "422" not in problem] == []
    visitor.problems.clear()  # the browser logs the 422


def upload_through(proxy: CuttingProxy, page: Page, folder: Path, model: str) -> str:
    """Upload a folder, reload the page in the middle twice, and return the version's id on its page."""
    page.goto(f"{proxy.url}/t/acme/uploads/new")
    page.get_by_role("combobox", name="Model").fill(model)
    choose(page, folder)
    upload_button(page).click()
    for _ in range(NUM_RELOADS):
        proxy.wait_until_held()
        proxy.release()
        page.reload()
        expect(page.get_by_role("heading", name="Continue the upload")).to_be_visible()
        choose(page, folder)
    page.wait_for_url(re.compile(r"/versions/ver_"))
    return page.url.rpartition("/")[2]


def validates_live(page: Page) -> None:
    page.evaluate("window.isTheSame = true")
    expect(page.locator("#live").get_by_text("Every check has passed: it can be deployed.")).to_be_visible(
        timeout=240_000
    )
    expect(page.locator(".steps .done")).to_have_count(12)
    expect(page.locator(".steps")).to_contain_text("First token after")
    assert page.evaluate("window.isTheSame"), "the page was loaded once"


def deploys(page: Page, name: str) -> str:
    """Deploy the version whose page it is; return the path of the deployment's page."""
    page.get_by_role("link", name="Deploy this version").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Deploy the version").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    return _path(page.url)


def answers(page: Page, name: str) -> None:
    page.goto(f"/t/acme/playground?model={name}")
    page.get_by_label("Most tokens").fill("8")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#finished")).to_contain_text("Answer finished")
    expect(page.locator("#version")).to_have_text(f"{name} v1")


def sleeps_when_idle(page: Page, deployment: str) -> None:
    page.goto(f"{deployment}/settings")
    page.get_by_label("Asleep").select_option("after 1 min")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.locator("#live").get_by_text("Asleep", exact=True).first).to_be_visible(timeout=120_000)


def ends(page: Page, deployment: str, name: str) -> None:
    page.goto(f"{deployment}/delete")
    page.get_by_label("to confirm").fill(name)
    page.get_by_role("button", name="Delete the deployment").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Deployments")
