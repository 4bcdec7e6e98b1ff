"""What to serve and how: the description of one engine replica."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from engines.protocol import Role

Device = Literal["cpu", "cuda"]

OWN_ARGUMENTS = {
    "model_path": "model_path",
    "device": "device",
    "dtype": "dtype",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_running_requests",
    "context_length": "context_tokens",
    "stream_interval": "stream_interval",
    "is_embedding": "role",
}
"""Arguments of SGLang that a field of `EngineSpec` sets, with the name of that field."""

CLOSED_ARGUMENTS = frozenset(
    {
        "allow_auto_truncate",
        "incremental_streaming_output",
        "skip_tokenizer_init",
        "tokenizer_worker_num",
        "detokenizer_worker_num",
        "sampling_backend",
        "custom_sigquit_handler",
    }
)
"""Arguments of SGLang that `SGLangEngine` sets itself, since its own promises rest on them."""

CLOSED_REWARD_ARGUMENTS = frozenset({"enable_lora", "lora_paths"})
"""Closed with the role "reward": SGLang keeps prefixes apart by adapter alone there, so that the cache salt
takes the adapter's place."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One replica of one model.

    Args:
        name: unique in the Ray namespace; letters, digits, dot, underscore, hyphen.
        model_path: a folder with a checkpoint in the Hugging Face layout.
        role: "reward" for a model that has a reward head in place of a language model's.
        device: "cpu" or "cuda".
        dtype: "auto", "float32", "bfloat16" or "float16".
        max_total_tokens: size of the KV cache in tokens; None lets the engine measure its memory
            (needs a CUDA device).
        max_running_requests: most generations in one batch.
        threads: threads of one torch operation.
        context_tokens: shortens the model's context; None keeps it.
        stream_interval: tokens per streamed chunk, except the first, which comes with the first token.
        max_restarts: how often Ray starts the engine anew after it died.
        cpus, gpus: what Ray sets aside for it.
        engine_args: further arguments of SGLang's `ServerArgs`.

    Raises:
        ValueError: names the field, or the key of `engine_args`, that is not legal.
    """

    name: str
    model_path: str
    role: Role = "generate"
    device: Device = "cpu"
    dtype: str = "auto"
    max_total_tokens: int | None = None
    max_running_requests: int = 64
    threads: int = 1
    context_tokens: int | None = None
    stream_interval: int = 8
    max_restarts: int = 16
    cpus: float = 0.0
    gpus: float = 0.0
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: {self.name!r} is not a legal engine name")
        if self.role not in get_args(Role):
            raise ValueError(f"role: must be one of {', '.join(get_args(Role))}, not {self.role!r}")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device: must be 'cpu' or 'cuda', not {self.device!r}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype: must be auto, float32, bfloat16 or float16, not {self.dtype!r}")
        for name in ("max_total_tokens", "context_tokens"):
            value = getattr(self, name)
            if value is not None and value < 16:
                raise ValueError(f"{name}: must be at least 16, not {value}")
        for name in ("max_running_requests", "threads", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, not {getattr(self, name)}")
        for name in ("max_restarts", "cpus", "gpus"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be negative, but is {getattr(self, name)}")
        if self.max_total_tokens is None and self.device == "cpu":
            raise ValueError("max_total_tokens: must be set for device 'cpu'")
        _check_engine_args(
            self.engine_args, CLOSED_REWARD_ARGUMENTS if self.role == "reward" else frozenset()
        )
        object.__setattr__(self, "engine_args", dict(self.engine_args))


def _check_engine_args(engine_args: Mapping[str, Any], closed: frozenset[str]) -> None:
    for key in engine_args:
        if key in OWN_ARGUMENTS:
            raise ValueError(f"engine_args: set {key!r} through the field {OWN_ARGUMENTS[key]!r}")
        if key in CLOSED_ARGUMENTS | closed:
            raise ValueError(f"engine_args: {key!r} cannot be set")
        if key not in server_argument_names():
            raise ValueError(f"engine_args: SGLang has no argument {key!r}")


@cache
def server_argument_names() -> frozenset[str]:
    """Names of SGLang's `ServerArgs` fields, read from its source: importing it takes seconds and torch.

    Raises:
        ValueError: SGLang is not installed, or its source is laid out otherwise.
    """
    found = find_spec("sglang")
    if found is None or found.origin is None:
        raise ValueError("engine_args: SGLang is not installed")
    source = Path(found.origin).parent / "srt" / "arg_groups" / "field_order.py"
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"engine_args: cannot read SGLang's argument names: {error}") from error
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            return frozenset(ast.literal_eval(statement.value))
    raise ValueError("engine_args: SGLang's argument names were not found")
