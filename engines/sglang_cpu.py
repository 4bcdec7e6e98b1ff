"""SGLang on a machine without a GPU.

SGLang's CPU path wants kernels that only a CUDA or AMX build has, at import time alone; with the
arguments below none of them is ever called. `install_shims` supplies them, in the engine's own process
here and in its workers through `engines.sglang_cpu_worker`.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

ARGUMENTS: dict[str, Any] = {
    "attention_backend": "torch_native",
    "grammar_backend": "xgrammar",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "sleep_on_idle": True,
}
"""Without `sleep_on_idle` the scheduler spins on a whole core while there is nothing to do."""


def unavailable(_arguments: Mapping[str, Any]) -> frozenset[str]:
    """Fields of `Sampling` that an engine with these arguments cannot honour."""
    return frozenset()


def environment(threads: int) -> dict[str, str]:
    """Environment variables that must be set before torch is imported.

    Idle OpenMP threads must block: two engines on two cores otherwise spin each other to a standstill.
    torch.compile stays off: SGLang would compile on the first repetition penalty, and stand still for
    twenty seconds.
    """
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",
    }


def install_shims() -> None:
    """Supply the `sgl_kernel` module and the torchvision operators that are missing. Idempotent."""
    _install_sgl_kernel()
    _define_torchvision_operators()


def _install_sgl_kernel() -> None:
    if "sgl_kernel" in sys.modules:
        return
    module = types.ModuleType("sgl_kernel", "A stand-in: every kernel exists and none can be called.")
    module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", loader=None)

    def missing(name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_args: Any, **_kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"sgl_kernel.{name} is not available on this machine")

        return kernel

    module.__getattr__ = missing  # type: ignore[method-assign]
    sys.modules["sgl_kernel"] = module


@cache
def _define_torchvision_operators() -> Any:
    import torch

    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library  # the operators go when the library object does


def start(arguments: dict[str, Any], threads: int) -> Any:
    """Start SGLang's `Engine` in this process with its workers as children; blocks until it can serve."""
    os.environ.update(environment(threads))
    install_shims()
    from sglang.srt.entrypoints.engine import Engine

    from engines.seeded_sampler import SAMPLING_BACKEND, install_seeded_sampler
    from engines.sglang_cpu_worker import run_detokenizer, run_scheduler

    install_seeded_sampler()

    class CpuEngine(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(run_scheduler)
        run_detokenizer_process_func = staticmethod(run_detokenizer)

    return CpuEngine(**{**ARGUMENTS, "sampling_backend": SAMPLING_BACKEND, **arguments})
