"""``python -m stack up|down|status|supervise`` and ``stop|start SERVICE``."""

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
    for name in ("stop", "start"):
        commands.add_parser(name, help=f"{name} one service").add_argument("service")
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
    wanted = getattr(arguments, "service", "")
    answer = client.call(home, arguments.command, service=wanted)
    if answer is None:
        print("Nothing is running.")
        return 1
    for name, service in answer.get("services", {wanted: answer}).items():
        print(f"{name:10} {service['state']:9} pid {service['pid'] or '-'}  restarts {service['restarts']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
