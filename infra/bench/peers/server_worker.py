"""Bodies of the worker processes of SGLang's HTTP server: its own sampler, our shims and idle habits."""

from __future__ import annotations

from typing import Any

from engines.sglang_cpu import install_shims

# SGLang spawns its workers, which import this module first and need the shims before anything of SGLang.
install_shims()


def run_scheduler(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.scheduler import run_scheduler_process

    from engines.sglang_cpu_worker import _quiet_gloo

    # As in our own engine: otherwise this server, idle, would slow the side that is being measured.
    _quiet_gloo()
    run_scheduler_process(*args, **kwargs)


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*args, **kwargs)
