"""Bodies of the raw engine's worker processes: SGLang's own, its own sampler included."""

from __future__ import annotations

from typing import Any

from engines.sglang_cpu import install_shims

# SGLang spawns its workers, which import this module first and need the shims before anything of SGLang.
install_shims()


def run_scheduler(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.scheduler import run_scheduler_process

    run_scheduler_process(*args, **kwargs)


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*args, **kwargs)
