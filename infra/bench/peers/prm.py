"""The tiny reasoner over SGLang's native HTTP endpoint: one more line of a solution, and a prefix's score.

For peers that bring a search and want a model and a reward from outside. Needs aiohttp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import aiohttp

JUDGE = "<|judge|>"
LINE = "\n"


class TinyReasoner:
    """Speaks to one SGLang server.

    Args:
        settings: of the turn: `engine` (address), `labels` (ids of right and wrong), `temperature`,
            `max_new_tokens`.
    """

    def __init__(self, http: aiohttp.ClientSession, settings: Mapping[str, Any]) -> None:
        self._http = http
        self._url = f"{settings['engine']}/generate"
        self._right, self._wrong = settings["labels"]
        self._sampling = {
            "temperature": settings["temperature"],
            "max_new_tokens": settings["max_new_tokens"],
            "stop": [LINE],
        }
        self.scores = 0

    async def next_line(self, text: str) -> tuple[str, bool]:
        """The line that follows, without its line break, and whether the model ended its answer there."""
        out = await self._post({"text": text, "sampling_params": self._sampling})
        reason = out["meta_info"]["finish_reason"]
        return out["text"], reason.get("matched") != LINE

    async def score(self, text: str) -> float:
        """Probability that all lines so far are right: that of the right label against the wrong one."""
        self.scores += 1
        body = {
            "text": text.rstrip(LINE) + JUDGE,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "return_logprob": True,
            "token_ids_logprob": [self._right, self._wrong],
        }
        out = await self._post(body)
        by_id = {token: value for value, token, _ in out["meta_info"]["output_token_ids_logprobs"][0]}
        return 1.0 / (1.0 + math.exp(by_id[self._wrong] - by_id[self._right]))

    async def _post(self, body: Mapping[str, Any]) -> Any:
        async with self._http.post(self._url, json=body) as response:
            response.raise_for_status()
            return await response.json()


def unlimited() -> aiohttp.ClientSession:
    """A session whose connections the engine limits, not the client."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )
