"""Rewards from SGLang, which serves models with a reward head as embedding models.

What its entry point `encode` lacks is supplied here: token ids in, the count of cached tokens out, and
prefixes kept apart by salt. Its radix cache and chunked prefill work as they do for generations; the head is
read at the last token of the prompt.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from engines import sglang_errors
from engines.protocol import EngineError, RewardRequest, Role

REWARD_ARCHITECTURES = frozenset(
    {
        "Gemma2ForSequenceClassification",
        "InternLM2ForRewardModel",
        "LlamaForSequenceClassification",
        "LlamaForSequenceClassificationWithNormal_Weights",
        "Qwen2ForRewardModel",
        "Qwen2ForSequenceClassification",
        "Qwen3ForRewardModel",
        "Qwen3ForSequenceClassification",
    }
)
"""Those that SGLang serves, and reads at the last token of a causal model."""


def check_role(model_path: str, role: Role) -> None:
    """Refuse to serve a model in a role that is not its own.

    SGLang would give the hidden states of a model that has no reward head as if they were rewards.

    Raises:
        EngineError: it has another role; the message says which, or which architectures there are.
    """
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
        architectures = config.get("architectures") or []
    except (OSError, ValueError, AttributeError) as error:
        raise EngineError(f"{model_path} has no readable config.json") from error
    named = ", ".join(map(str, architectures)) or "no architecture"
    rewards = bool(REWARD_ARCHITECTURES.intersection(architectures))
    if role == "reward" and not rewards:
        known = ", ".join(sorted(REWARD_ARCHITECTURES))
        raise EngineError(f"role: {named} has no reward head that can be served; these have: {known}")
    if role == "generate" and rewards:
        raise EngineError(f"role: {named} has a reward head; serve it with the role 'reward'")


class RewardPort:
    """Puts reward calls to one tokenizer manager."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._cached: dict[str, int] = {}
        original = manager._handle_batch_output

        async def handle(batch: Any) -> None:
            # SGLang has the count of cached tokens here and does not hand it on.
            for rid, cached in zip(batch.rids, batch.cached_tokens, strict=True):
                if rid in self._cached:
                    self._cached[rid] = cached
            await original(batch)

        manager._handle_batch_output = handle

    async def ask(self, request: RewardRequest, rid: str) -> tuple[tuple[float, ...], int]:
        """All outputs of the head, and how many tokens of the prompt were cached.

        Raises:
            EngineError: the call was aborted or refused, or an output is not finite.
        """
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        what = EmbeddingReqInput(
            input_ids=list(request.input_ids),
            rid=rid,
            priority=0,
            # The only part of an embedding request that keeps prefixes apart. It is not looked up, since
            # nothing is loaded for it where adapters are off.
            lora_id=request.cache_salt,
            external_trace_header=dict(request.trace) or None,
        )
        self._cached[rid] = 0
        try:
            out = await anext(self._manager.generate_request(what, None))
        except ValueError as error:
            raise sglang_errors.refused(error) from error
        finally:
            cached = self._cached.pop(rid)
        if out["meta_info"]["finish_reason"]["type"] == "abort":
            raise EngineError("the reward was aborted")
        outputs = tuple(float(value) for value in out["embedding"])
        if not outputs or not all(map(math.isfinite, outputs)):
            raise EngineError("the reward head gave no finite value")
        return outputs, cached
