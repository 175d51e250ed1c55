"""``python -m stack up|down|status|supervise``, ``stop|start|restart SERVICE``, ``probes`` and ``manage ARGUMENTS``."""

import argparse
import sys

from stack import client, up
from stack.home import Home, StackError


def main() -> int:
    """Run one command; 1 and a sentence when it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m stack", description="The whole product on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start everything in the background and print how to use it"),
        ("down", "end what up started"),
        ("status", "say what runs"),
        ("supervise", "run the supervisor in the foreground"),
    ):
        commands.add_parser(name, help=text)
    for name in ("stop", "start", "restart"):
        commands.add_parser(name, help=f"{name} one service").add_argument("service")
    probes = commands.add_parser("probes", help="probe what tenants share for leaks, and print what was found")
    probes.add_argument("--n", type=int, default=2000, help="times in each sample (2000)")
    manage = commands.add_parser("manage", help="run manage.py with the settings and secrets of the stack")
    manage.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what manage.py takes")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except StackError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace) -> int:
    home = Home.open()
    if arguments.command in ("up", "down", "supervise"):
        getattr(up, arguments.command)(home)
        return 0
    if arguments.command == "manage":
        return up.manage(home, arguments.arguments)
    if arguments.command == "probes":
        return up.probes(home, arguments.n)
    wanted = getattr(arguments, "service", "")
    if arguments.command == "restart":
        client.call(home, "stop", service=wanted)
    call = "start" if arguments.command == "restart" else arguments.command
    answer = client.call(home, call, service=wanted)
    if answer is None:
        print("Nothing is running.")
        return 1
    for name, service in answer.get("services", {wanted: answer}).items():
        print(f"{name:10} {service['state']:9} pid {service['pid'] or '-'}  restarts {service['restarts']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
