"""The model that a stack hosts first: made or checked before anything starts."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from controlplane.registry import links
from controlplane.registry.inspection import InspectionFailed, inspect
from dataplane.contracts.verdict import Refusal
from stack.home import REPOSITORY, Home, StackError
from stack.progress import Progress


def require(home: Home, progress: Progress) -> None:
    """Make the bundled model where it is missing, or check the folder that a person named.

    Raises:
        StackError: the bundled model cannot be made, the folder cannot be served, or there is no name for it.
    """
    name = home.model_name
    if not os.environ.get("PAGODA_MODEL_DIR"):
        if not (home.model_dir / "config.json").exists():
            _make_bundled(home.model_dir, progress)
        return
    if not home.model_dir.is_dir():
        raise StackError(f"PAGODA_MODEL_DIR is {home.model_dir}, which is no folder of this machine.")
    hosted = home.hosted()
    if (hosted.get("model"), hosted.get("model_dir")) == (name, str(home.model_dir)):
        return  # it was imported before
    _check(home, progress)
    progress.done(f"{home.model_dir} can be served, as {name}")


def refused(folder: Path, refusals: Iterable[Refusal]) -> str:
    """Return why ``folder`` cannot be served, a line for each reason."""
    lines = [f"  {refusal.file or 'the folder'}: {refusal.reason}. {refusal.mend}" for refusal in refusals]
    return "\n".join([f"{folder} cannot be served:", *lines])


def _check(home: Home, progress: Progress) -> None:
    progress.waiting(f"inspecting {home.model_dir}")
    try:
        with links.as_files(home.model_dir, home.root) as files:
            verdict = inspect(files)
    except (InspectionFailed, OSError) as error:
        raise StackError(f"{home.model_dir} could not be inspected: {error}.") from error
    if verdict.refusals:
        raise StackError(refused(home.model_dir, verdict.refusals))


def _make_bundled(folder: Path, progress: Progress) -> None:
    print("  … fetching and converting the bundled model (once, about a minute)", flush=True)
    # In a session of its own the terminal's Ctrl-C reaches this process alone, and the child ends in an orderly way.
    child = subprocess.Popen(
        [sys.executable, "-m", "stack.bundled_model", str(folder)], cwd=REPOSITORY, start_new_session=True
    )
    try:
        code = child.wait()
    except BaseException:
        print("\nStopping…", flush=True)
        child.terminate()
        child.wait()
        raise
    if code:
        raise StackError("The bundled model could not be made; the lines above say why. Then: make up")
    progress.done("bundled model")
