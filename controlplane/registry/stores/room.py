"""Room on a disk of this machine. The last of it is not for what people upload: databases and spools may lie there too.

A disk that uploads fill to the last byte stops everybody; one that refuses them a little earlier stops uploads.
"""

import shutil
from pathlib import Path

from controlplane.registry.stores.errors import StoreFull

RESERVE_BYTES = 1024**3
_RESERVE_SHARE = 0.05


def require(folder: Path, size_bytes: int) -> None:
    """Return where ``size_bytes`` more leave the reserve alone: a gibibyte, or a twentieth of a small disk.

    Raises:
        StoreFull: they do not.
        FileNotFoundError: there is no such folder.
    """
    disk = shutil.disk_usage(folder)
    if disk.free - size_bytes < min(RESERVE_BYTES, int(disk.total * _RESERVE_SHARE)):
        raise StoreFull(f"no room is left under {folder}; free some disk space and try again")
