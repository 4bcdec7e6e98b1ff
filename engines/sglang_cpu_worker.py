"""Bodies of SGLang's worker processes on a machine without a GPU.

SGLang spawns its workers, and spawn pickles their functions by reference: a worker imports this module
before anything of SGLang, not even its arguments are unpickled earlier. So the shims are installed on
import, which nothing but a worker and `engines.sglang_cpu.start` does.
"""

from __future__ import annotations

from typing import Any

from engines.sglang_cpu import install_shims

install_shims()


def run_scheduler(*args: Any, **kwargs: Any) -> None:
    """Body of the scheduler process; the arguments are those of SGLang's `run_scheduler_process`."""
    from sglang.srt.managers.scheduler import run_scheduler_process

    from engines.seeded_sampler import install_seeded_sampler

    install_seeded_sampler()
    _share_the_world_group()
    run_scheduler_process(*args, **kwargs)


def _share_the_world_group() -> None:
    """Let all process groups of a world of one process be its world group, which has the same member.

    Each further gloo group has threads of its own that wake up a hundred times a second; SGLang makes about
    a dozen of them, which cost more than all else in an idle engine.
    """
    import torch.distributed as dist

    original = dist.new_group

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return dist.group.WORLD if dist.get_world_size() == 1 else original(*args, **kwargs)

    dist.new_group = new_group


def run_detokenizer(*args: Any, **kwargs: Any) -> None:
    """Body of the detokenizer process; the arguments are those of SGLang's `run_detokenizer_process`."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*args, **kwargs)
