"""The folder in which one attempt to validate a version has its files, for the child that reads them."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from controlplane.jobs.services import Lease


def root() -> Path:
    """Return the folder of all workspaces."""
    return Path(settings.PAGODA_HOME) / "validating"


@contextmanager
def workspace(lease: Lease) -> Iterator[Path]:
    """Make the attempt's own folder, and remove it at the end. A killed worker's is swept by the collector.

    The name has the claim in it: an attempt that has lost its lease removes its own folder, not its successor's.
    """
    folder = root() / f"{lease.job_id}.{lease.fence}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(running: Callable[[Iterable[str]], set[tuple[str, int]]]) -> None:
    """Remove the folders whose attempt is over.

    Args:
        running: given the ids of jobs, returns those that run, each with its claim.
    """
    if not root().is_dir():
        return
    found = {
        (job_id, claim): folder for folder in root().iterdir() for job_id, _, claim in [folder.name.partition(".")]
    }
    alive = {(job_id, str(fence)) for job_id, fence in running({job_id for job_id, _ in found})}
    for attempt, folder in found.items():
        if attempt not in alive:
            shutil.rmtree(folder, ignore_errors=True)
