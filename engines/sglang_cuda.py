"""SGLang on CUDA devices: its own `Engine`, with plain arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

ARGUMENTS: dict[str, Any] = {"sleep_on_idle": True, "enable_deterministic_inference": True}
"""SGLang reads a request's seed in its deterministic mode alone, and cannot do `min_p` there."""


def unavailable(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Fields of `Sampling` that an engine with these arguments cannot honour."""
    return frozenset({"min_p"} if arguments.get("enable_deterministic_inference") else {"seed"})


def environment(threads: int) -> dict[str, str]:
    """Environment variables that must be set before torch is imported."""
    return {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def start(arguments: dict[str, Any], threads: int) -> Any:
    """Start SGLang's `Engine` in this process with its workers as children; blocks until it can serve."""
    os.environ.update(environment(threads))
    from sglang.srt.entrypoints.engine import Engine

    return Engine(**{**ARGUMENTS, **arguments})
