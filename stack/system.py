"""System parts that no wheel brings: installed where we may, else named with the mend.

``python -m stack.system`` sees to what running needs, with ``--tests`` also to what the browser tests need.
"""

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from stack.postgres import PostgresError, find_binaries


@dataclass(frozen=True)
class Part:
    """A program the stack or its tests need. ``package`` is Debian's."""

    name: str
    package: str
    why: str
    needed_to_run: bool


CHROMIUM = Part("chromium", "chromium", "the browser tests", needed_to_run=False)
POSTGRES = Part("postgres", "postgresql", "the database", needed_to_run=True)
SETPRIV = Part("setpriv", "util-linux", "starting PostgreSQL", needed_to_run=True)


def missing(*, for_tests: bool) -> list[Part]:
    """Return the parts this machine lacks."""
    programs = (SETPRIV, CHROMIUM) if for_tests else (SETPRIV,)
    parts = [part for part in programs if shutil.which(part.name) is None]
    try:
        find_binaries()
    except PostgresError:
        if not os.environ.get("DATABASE_URL"):
            parts.append(POSTGRES)
    return parts


def _install(parts: list[Part]) -> None:
    packages = [part.package for part in parts]
    print(f"Installing {', '.join(packages)} with apt-get", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Install or name what is missing; 1 when something that is needed to run stays missing."""
    parser = argparse.ArgumentParser(prog="python -m stack.system", description="Install or name what is missing.")
    parser.add_argument("--tests", action="store_true", help="what the browser tests need, too")
    for_tests = parser.parse_args().tests
    parts = missing(for_tests=for_tests)
    if parts and os.geteuid() == 0 and shutil.which("apt-get"):
        try:
            _install(parts)
        except subprocess.CalledProcessError as error:
            print(f"apt-get failed with exit status {error.returncode}.", file=sys.stderr)
        parts = missing(for_tests=for_tests)
    for part in parts:
        print(
            f"{part.name} is missing; {part.why} needs it. Install it: sudo apt-get install {part.package}",
            file=sys.stderr,
        )
    return 1 if any(part.needed_to_run for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
