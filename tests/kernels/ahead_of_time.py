"""Compile every configuration that the launchers ask for, for a GPU that is not there.

    python ahead_of_time.py {80|90} [--all]

Triton compiles when a kernel is launched, for the GPU of the active driver. Here a driver says which GPU it would be,
and a launch ends where the machine code is ready; so what is compiled is what the real launchers would run. Prints one
line of JSON: the kernels, and the most shared memory that one of them asks for.
"""

import json
import sys
from typing import Any

import kernel_cases
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class AbsentGpu:
    """A driver of a GPU with compute capability ``capability``, which can be asked what it is and nothing else."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(capability: int, everything: bool) -> None:
    compiled: dict[int, Any] = {}
    launch = JITFunction.run

    def compile_only(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        compiled[id(kernel)] = kernel

    triton.runtime.driver.set_active(AbsentGpu(capability))
    JITFunction.run = compile_only
    for case in kernel_cases.all_to_compile() if everything else kernel_cases.quick_to_compile():
        case.launch("cpu")
    kernels = [
        {"name": kernel.metadata.name, "shared_bytes": kernel.metadata.shared, "cubin_bytes": len(kernel.asm["cubin"])}
        for kernel in compiled.values()
    ]
    print(json.dumps(kernels))


if __name__ == "__main__":
    main(int(sys.argv[1]), "--all" in sys.argv)
