"""``make up`` and ``make down``: start the stack in the background, show what is waited for, print how to use it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from dataplane.contracts.internal_calls import authorization
from stack import client, hosted_model
from stack.home import REPOSITORY, SETTINGS, Home, StackError, chosen
from stack.progress import Progress
from stack.services import Plan, operator_environment, plan

_START_TIMEOUT_S = 180.0
_POLL_S = 0.1
_MOST_RESTARTS = 3
_TAIL_LINES = 15


def up(home: Home) -> None:
    """Bring the stack up, or say that it is up already.

    Raises:
        StackError: something the person can mend.
    """
    progress = Progress()
    with client.single_command(home):
        running = client.running_settings(home)
        if running is not None:
            _require_same(running)
            progress.done("already running")
            _finish(_as_running(home), progress)
            return
        hosted_model.require(home, progress)
        supervisor = _launch(home)
        try:
            _wait_for_supervisor(home, supervisor, progress)
            _finish(home, progress)
        except BaseException:
            print("\nStopping…", flush=True)
            supervisor.terminate()
            supervisor.wait()
            raise


def _require_same(running: dict[str, str]) -> None:
    """Check that a running stack has what this command's environment asks for; what it does not mention may differ."""
    faults = []
    for name, value in chosen(os.environ).items():
        if name in os.environ and running.get(name) != value:
            is_secret = name.endswith("_URL")  # an address with a password in it
            has = "another one" if is_secret else running.get(name, "not set")
            faults.append(f"  {name}: running with {has}" + ("" if is_secret else f", asked for {value}"))
    if faults:
        lines = "\n".join(faults)
        raise StackError(f"Pagoda is already running, with other settings:\n{lines}\nmake down first to change them.")


def _as_running(home: Home) -> Home:
    """Return ``home`` with the settings of the stack that runs there, in this process's environment as well."""
    running = client.running_settings(home)
    if running is None:
        return home
    for name in SETTINGS:
        os.environ.pop(name, None)
    os.environ.update(running)
    return Home.open()


def manage(home: Home, arguments: list[str]) -> int:
    """Run ``manage.py ARGUMENTS`` with the settings and secrets of the stack, and return its exit code."""
    environment = operator_environment(_as_running(home))
    code = subprocess.run(
        [sys.executable, str(REPOSITORY / "manage.py"), *arguments], env=environment, check=False
    ).returncode
    if code and client.call(home, "status") is None:
        print("\nPagoda is not running. A command that needs the database needs: make up", file=sys.stderr)
    return code


def probes(home: Home, samples: int) -> int:
    """Have the fleet probe what several tenants share, so many times each way, and return the exit code."""
    environment = _as_running(home).environment("PAGODA_INTERNAL_SECRET")
    command = [sys.executable, "-m", "dataplane.fleet.probes", "--n", str(samples)]
    return subprocess.run(command, env=environment, cwd=REPOSITORY, check=False).returncode


def _finish(home: Home, progress: Progress) -> None:
    _wait_for_services(home, progress)
    details = home.described()
    _wait_for_model(home, {**details, **home.hosted()}, progress)
    _print_summary(details, progress)


def down(home: Home) -> None:
    """End what ``up`` started, and wait until it has ended."""
    with client.single_command(home):
        answer = client.call(home, "down")
        if answer is None:
            print("Nothing is running.")
            return
        print("Stopping…", flush=True)
        began = time.monotonic()
        while client.call(home, "status") is not None or _runs(int(answer["pid"])):
            time.sleep(_POLL_S)
        print(f"Stopped in {time.monotonic() - began:.1f} s. Data is kept in {home.root}; make up continues with it.")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _launch(home: Home) -> subprocess.Popen[bytes]:
    made: Plan = plan(home)
    home.ports.require_free(made.ports)
    with (home.root / "logs" / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stack", "supervise"],
            cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _wait_for_supervisor(home: Home, supervisor: subprocess.Popen[bytes], progress: Progress) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while client.call(home, "status") is None:
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise StackError(f"The supervisor did not start; the reason is in {home.root / 'logs' / 'supervisor.log'}")
        time.sleep(_POLL_S)
    progress.done("supervisor")


def _wait_for_services(home: Home, progress: Progress) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        status = client.call(home, "status")
        if status is None:
            raise StackError(f"The supervisor ended; the reason is in {home.root / 'logs' / 'supervisor.log'}")
        services: dict[str, dict[str, Any]] = status["services"]
        waiting = [name for name, service in services.items() if service["state"] not in ("ready", "done")]
        if not waiting:
            progress.done(f"services: {', '.join(services)}")
            return
        refused = [name for name in waiting if services[name]["state"] == "refused"]
        if refused:
            raise StackError(_said(home, refused[0], services[refused[0]]["log_from"]))
        broken = [name for name in waiting if services[name]["restarts"] >= _MOST_RESTARTS]
        if broken or time.monotonic() > deadline:
            name = (broken or waiting)[0]
            lines = _said(home, name, services[name]["log_from"]).splitlines()[-_TAIL_LINES:]
            raise StackError("\n".join([f"{name} does not start. The end of {_log(home, name)}:", *lines]))
        progress.waiting("waiting for services", ", ".join(waiting))
        time.sleep(_POLL_S)


def _log(home: Home, service: str) -> Path:
    return home.root / "logs" / f"{service}.log"


def _said(home: Home, service: str, log_from: int) -> str:
    """Return what a service has written since its last start."""
    path = _log(home, service)
    if not path.exists():
        return "(no log yet)"
    return path.read_bytes()[log_from:].decode(errors="replace").strip()


def _wait_for_model(home: Home, details: dict[str, str], progress: Progress) -> None:
    """Wait until the deployment that ``details`` name serves; one that is kept without replicas is not waited for."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    name = details["model"]
    with httpx.Client(timeout=5.0, trust_env=False) as http:
        resting = _resting(http, details)
        if resting:
            progress.done(f"{name} {resting}")
            return
        while True:
            replicas = _replicas(http, home, details["deployment_id"])
            if any(replica["state"] == "ready" for replica in replicas) and _key_works(http, details):
                progress.done(f"{name} is ready")
                return
            if time.monotonic() > deadline:
                causes = "; ".join(f"{replica['state']}: {replica['cause']}" for replica in replicas) or "no replica"
                raise StackError(f"{name} is not ready after {_START_TIMEOUT_S:.0f} s ({causes}).")
            states = ", ".join(replica["state"] for replica in replicas) or "a replica to be assigned"
            details_shown = ", ".join(replica.get("detail", "") for replica in replicas)
            progress.waiting(f"waiting for {name}: {states}", details_shown)
            time.sleep(_POLL_S)


def _resting(http: httpx.Client, details: dict[str, str]) -> str:
    """Say why the deployment has no replica to wait for; "" when there should be one."""
    headers = {"Authorization": f"Bearer {details['api_key']}"}
    deployment = _ask(lambda: http.get(f"{details['api_url']}/deployments/{details['deployment_id']}", headers=headers))
    if deployment is None:
        return ""
    if deployment["state"] != "active":
        return f"is {deployment['state']}: resume it in the console"
    return "" if deployment["min_replicas"] else "keeps no replica: its min_replicas is 0"


def _replicas(http: httpx.Client, home: Home, deployment_id: str) -> list[dict[str, Any]]:
    headers = {"Authorization": authorization(home.secret("PAGODA_INTERNAL_SECRET"))}
    table = _ask(lambda: http.get(f"{home.fleet_url}/replicas", headers=headers))
    return [row for row in table["replicas"] if row.get("deployment_id") == deployment_id] if table else []


def _ask(request: Callable[[], httpx.Response]) -> dict[str, Any] | None:
    try:
        response = request()
    except httpx.HTTPError:
        return None
    if response.status_code != httpx.codes.OK:
        return None
    answer: dict[str, Any] = response.json()
    return answer


def _key_works(http: httpx.Client, details: dict[str, str]) -> bool:
    headers = {"Authorization": f"Bearer {details['api_key']}"}
    models = _ask(lambda: http.get(f"{details['gateway_url']}/models", headers=headers))
    return models is not None and any(model["id"] == details["model"] for model in models["data"])


def _print_summary(details: dict[str, str], progress: Progress) -> None:
    print(f"""
Pagoda is up ({progress.total_s:.0f} s).

  Console   {details["console_url"]}
  API       {details["gateway_url"]}
  Sign in   {details["user_email"]}  {details["user_password"]}   (owner of {details["tenant"]})
  Admin     {details["admin_email"]}  {details["admin_password"]}
  API key   {details["api_key"]}

Stream tokens from {details["model"]}:

  curl -N {details["gateway_url"]}/chat/completions \\
    -H "Authorization: Bearer {details["api_key"]}" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{details["model"]}", "stream": true, "max_tokens": 120,
         "messages": [{{"role": "user", "content": "Tell me about pagodas in three sentences."}}]}}'

make down ends it.""")


def supervise(home: Home) -> None:
    """Run the supervisor in the foreground; what ``up`` starts in the background."""
    import asyncio  # noqa: PLC0415 - only this command needs a loop

    from stack.supervisor import Supervisor  # noqa: PLC0415

    made = plan(home)

    async def run() -> None:
        await Supervisor(made.services, home.root / "logs", home.socket_path, REPOSITORY).run()

    os.umask(0o077)
    asyncio.run(run())
