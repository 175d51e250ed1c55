"""The supervisor: order, restarts, and nothing left behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from stack.supervisor import Service, Supervisor

SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")


def supervisor(folder: Path, *services: Service) -> Supervisor:
    return Supervisor(services, folder, folder / "s.sock", folder)


async def call(folder: Path, name: str, service: str = "") -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(folder / "s.sock"))
    writer.write(json.dumps({"call": name, "name": service}).encode() + b"\n")
    answer = json.loads(await reader.readline())
    writer.close()
    return answer


async def until(folder: Path, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            try:
                status = await call(folder, "status")
            except (FileNotFoundError, ConnectionRefusedError):
                status = {}
            if status and condition(status["services"]):
                return status["services"]
            await asyncio.sleep(0.02)


def all_settled(services: dict[str, Any]) -> bool:
    return all(service["state"] in ("ready", "done") for service in services.values())


def test_services_start_after_what_they_need_and_all_end_at_down(short_dir: Path) -> None:
    async def scenario() -> None:
        order = short_dir / "order"
        once = (sys.executable, "-c", f"open({str(order)!r}, 'a').write('once ')")
        noted = (sys.executable, "-c", f"open({str(order)!r}, 'a').write('late '); import signal; signal.pause()")
        running = asyncio.create_task(
            supervisor(
                short_dir,
                Service("late", noted, os.environ, needs=("once",)),
                Service("once", once, os.environ, needs=("early",), once=True),
                Service("early", SLEEPER, os.environ),
            ).run()
        )
        services = await until(short_dir, lambda s: all_settled(s) and order.exists() and "late" in order.read_text())
        assert order.read_text() == "once late "
        pids = [service["pid"] for service in services.values() if service["pid"]]
        await call(short_dir, "down")
        await running
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert not (short_dir / "s.sock").exists()

    asyncio.run(scenario())


def test_a_killed_service_is_restarted_and_a_stopped_one_stays_down_until_started(short_dir: Path) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(supervisor(short_dir, Service("program", SLEEPER, os.environ)).run())
        first = (await until(short_dir, all_settled))["program"]["pid"]
        os.kill(first, signal.SIGKILL)
        again = await until(short_dir, lambda s: s["program"]["restarts"] == 1 and all_settled(s))
        assert again["program"]["pid"] != first
        await call(short_dir, "stop", "program")
        assert (await until(short_dir, lambda s: s["program"]["state"] == "stopped"))["program"]["pid"] is None
        assert (await call(short_dir, "start", "program"))["state"] == "ready"
        await call(short_dir, "down")
        await running

    asyncio.run(scenario())


def test_what_only_a_person_can_mend_is_not_tried_again_until_it_is_started_anew(short_dir: Path) -> None:
    async def scenario() -> None:
        program = (
            f"import os; print('because', flush=True); os._exit({os.EX_CONFIG} if not os.path.exists('ok') else 0)"
        )
        refusing = Service("refusing", (sys.executable, "-c", program), os.environ, once=True)
        late = Service("late", SLEEPER, os.environ, needs=("refusing",))
        running = asyncio.create_task(supervisor(short_dir, refusing, late).run())
        services = await until(short_dir, lambda s: s["refusing"]["state"] == "refused")
        assert (services["refusing"]["restarts"], services["late"]["state"]) == (0, "waiting")
        (short_dir / "ok").touch()
        assert (await call(short_dir, "start", "refusing"))["state"] == "done"
        again = await until(short_dir, all_settled)
        log = (short_dir / "refusing.log").read_bytes()
        assert log[again["refusing"]["log_from"] :] == b"because\n"
        assert len(log) > len(b"because\n")
        await call(short_dir, "down")
        await running

    asyncio.run(scenario())


def test_an_unknown_service_is_named_with_the_ones_there_are(short_dir: Path) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(supervisor(short_dir, Service("program", SLEEPER, os.environ)).run())
        await until(short_dir, all_settled)
        assert "program" in (await call(short_dir, "stop", "nothing"))["error"]
        await call(short_dir, "down")
        await running

    asyncio.run(scenario())


def test_children_end_when_the_supervisor_is_killed(short_dir: Path) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from stack.supervisor import Service, Supervisor\n"
        f"folder = Path({str(short_dir)!r})\n"
        f"services = [Service('program', {SLEEPER!r}, os.environ)]\n"
        "asyncio.run(Supervisor(services, folder, folder / 's.sock', folder).run())\n"
    )

    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        child = psutil.Process((await until(short_dir, all_settled))["program"]["pid"])
        process.kill()
        await process.wait()
        await asyncio.to_thread(child.wait, 90)

    asyncio.run(scenario())


@pytest.mark.parametrize("value", ["nonsense", "0", "70000"])
def test_a_port_that_is_none_is_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.home import Ports, StackError

    monkeypatch.setenv("PAGODA_WEB_PORT", value)
    with pytest.raises(StackError, match="PAGODA_WEB_PORT"):
        Ports.from_environment()


def test_a_taken_port_is_named_with_the_variable_that_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from stack.home import Ports, StackError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("PAGODA_GATEWAY_PORT", str(taken.getsockname()[1]))
        with pytest.raises(StackError, match="PAGODA_GATEWAY_PORT"):
            Ports.from_environment().require_free(["gateway"])
