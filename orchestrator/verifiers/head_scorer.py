"""Process reward by a model with a reward head, on engines of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engines.protocol import Engine, EngineLost, RewardRequest
from orchestrator.verifiers.port import Judgement, Subject
from orchestrator.verifiers.reward_head import RewardHead, RewardUnreadable


class HeadReward:
    """A scorer over a reward head.

    Args:
        pick: a replica of the reward model that is ready, or None.
    """

    name = "process_reward"

    def __init__(self, head: RewardHead, pick: Callable[[], Awaitable[Engine | None]]) -> None:
        self._head = head
        self._pick = pick

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return self._head.tokens

    async def score(self, subject: Subject) -> Judgement:
        engine = await self._pick()
        if engine is None:
            raise EngineLost("no engine of the reward model is ready")
        ids = self._head.input_ids(subject.path_ids, subject.prompt_tokens)
        reward = await engine.reward(
            RewardRequest(subject.call_id, ids, cache_salt=subject.cache_salt, trace=subject.trace)
        )
        try:
            score, reason = self._head.score(reward.outputs), ""
        except RewardUnreadable as e:
            score, reason = None, str(e)
        return Judgement(score, None, self._head.tokens, reward.usage, reward.engine_s, reason)
