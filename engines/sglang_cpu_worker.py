"""Bodies of SGLang's worker processes on a machine without a GPU.

SGLang spawns its workers, and spawn pickles their functions by reference: a worker imports this module
before anything of SGLang, not even its arguments are unpickled earlier. So the shims are installed on
import, which nothing but a worker and `engines.sglang_cpu.start` does.
"""

from __future__ import annotations

import ctypes
from typing import Any

from engines.sglang_cpu import install_shims

_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30
_GLOO_SLACK_NS = 1_000_000_000

install_shims()


def run_scheduler(*args: Any, **kwargs: Any) -> None:
    """Body of the scheduler process; the arguments are those of SGLang's `run_scheduler_process`."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    from engines.seeded_sampler import install_seeded_sampler

    install_seeded_sampler()
    _quiet_gloo()
    run_scheduler_process(*args, **kwargs)


def _quiet_gloo() -> None:
    """Keep gloo, which a world of one process has no use for, from waking up all the time.

    Each gloo group has a thread that waits for 10 ms at a time. SGLang makes about a dozen groups, which cost
    more than all else in an idle engine: in a world of one process they can all be its world group, which
    has the same member. The thread of that one inherits a timer slack (prctl(2)) that makes its waits longer,
    and what really comes still wakes it at once.
    """
    import torch.distributed as dist

    new_group, init = dist.new_group, dist.init_process_group

    def one_group(*args: Any, **kwargs: Any) -> Any:
        return dist.group.WORLD if dist.get_world_size() == 1 else new_group(*args, **kwargs)

    def init_patiently(*args: Any, **kwargs: Any) -> None:
        slack = _timer_slack(_GLOO_SLACK_NS)
        try:
            init(*args, **kwargs)
        finally:
            _timer_slack(slack)

    dist.new_group, dist.init_process_group = one_group, init_patiently


def _timer_slack(nanoseconds: int) -> int:
    """Set this thread's timer slack, which the threads it starts inherit; returns what it was."""
    libc = ctypes.CDLL(None)
    was: int = libc.prctl(_PR_GET_TIMERSLACK)
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds))
    return was


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """Body of the detokenizer process; the arguments are those of SGLang's `run_detokenizer_process`."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*args, **kwargs)
