"""``make up`` and ``make down``: start the stack in the background, show what is waited for, print how to use it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from dataplane.contracts.internal_calls import authorization
from stack import client
from stack.home import REPOSITORY, Home, StackError
from stack.services import Plan, plan

_START_TIMEOUT_S = 180.0
_POLL_S = 0.1
_MOST_RESTARTS = 3


class Progress:
    """One line a step; on a terminal the line of the running step is rewritten with what is waited for."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._began = self._step_began = time.monotonic()
        self._shown = ""

    def waiting(self, text: str) -> None:
        """Show what is waited for now."""
        if text != self._shown:
            self._shown = text
            print(
                f"\r\033[K  … {text}" if self._terminal else f"  … {text}",
                end="" if self._terminal else "\n",
                flush=True,
            )

    def done(self, text: str) -> None:
        """Close the step with its result."""
        seconds = time.monotonic() - self._step_began
        self._step_began, self._shown = time.monotonic(), ""
        print(f"{chr(13) + chr(27) + '[K' if self._terminal else ''}  ✓ {text} ({seconds:.1f} s)", flush=True)

    @property
    def total_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began


def up(home: Home) -> None:
    """Bring the stack up, or say that it is up already.

    Raises:
        StackError: something the person can mend.
    """
    progress = Progress()
    with client.single_command(home):
        if client.call(home, "status") is None:
            _require_model(home, progress)
            supervisor = _launch(home)
            try:
                _wait_for_supervisor(home, supervisor, progress)
                _finish(home, progress)
            except BaseException:
                supervisor.terminate()
                supervisor.wait()
                raise
        else:
            progress.done("already running")
            _finish(home, progress)


def _finish(home: Home, progress: Progress) -> None:
    _wait_for_services(home, progress)
    details: dict[str, str] = json.loads((home.root / "up.json").read_text())
    _wait_for_model(home, details, progress)
    _print_summary(details, progress)


def down(home: Home) -> None:
    """End what ``up`` started, and wait until it has ended."""
    with client.single_command(home):
        answer = client.call(home, "down")
        if answer is None:
            print("Nothing is running.")
            return
        began = time.monotonic()
        while client.call(home, "status") is not None or _runs(int(answer["pid"])):
            time.sleep(_POLL_S)
        print(f"Stopped in {time.monotonic() - began:.1f} s. Data is kept in {home.root}; make up continues with it.")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _require_model(home: Home, progress: Progress) -> None:
    if (home.model_dir / "config.json").exists():
        return
    if os.environ.get("PAGODA_MODEL_DIR"):
        raise StackError(f"PAGODA_MODEL_DIR is {home.model_dir}, which is no model folder: it has no config.json.")
    print("  … fetching and converting the bundled model (once, about a minute)", flush=True)
    if subprocess.run(
        [sys.executable, "-m", "stack.bundled_model", str(home.model_dir)], cwd=REPOSITORY, check=False
    ).returncode:
        raise StackError("The bundled model could not be made; the lines above say why. Then: make up")
    progress.done("bundled model")


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
        broken = [name for name in waiting if services[name]["restarts"] >= _MOST_RESTARTS]
        if broken or time.monotonic() > deadline:
            name = (broken or waiting)[0]
            log = home.root / "logs" / f"{name}.log"
            raise StackError(f"{name} does not start. The end of {log}:\n{_tail(log)}")
        progress.waiting(f"waiting for {', '.join(waiting)}")
        time.sleep(_POLL_S)


def _tail(path: Path, lines: int = 15) -> str:
    if not path.exists():
        return "(no log yet)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _wait_for_model(home: Home, details: dict[str, str], progress: Progress) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    headers = {"Authorization": authorization(home.secret("PAGODA_INTERNAL_SECRET"))}
    with httpx.Client(timeout=5.0, trust_env=False) as http:
        while True:
            table = _ask(lambda: http.get(f"{home.fleet_url}/replicas", headers=headers))
            replicas = table["replicas"] if table else []
            serving = [replica for replica in replicas if replica.get("deployment_id")]
            if any(replica["state"] == "ready" for replica in serving) and _key_works(http, details):
                progress.done(f"{details['model']} is ready")
                return
            if time.monotonic() > deadline:
                causes = "; ".join(f"{replica['state']}: {replica['cause']}" for replica in replicas) or "no replica"
                raise StackError(f"{details['model']} is not ready after {_START_TIMEOUT_S:.0f} s ({causes}).")
            state = ", ".join(f"{replica['state']} {replica.get('detail', '')}".strip() for replica in serving)
            progress.waiting(f"waiting for {details['model']}: {state or 'a replica to be assigned'}")
            time.sleep(_POLL_S)


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
