"""A world whose model writes step by step, each step being one of a few choices by the call's seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from search.contract import (
    Call,
    Chunk,
    Equate,
    Equated,
    Event,
    Failed,
    Generate,
    Generated,
    Score,
    Scored,
    Search,
)
from search.sample import SampleLimits
from search.tree import ROOT
from tests.search.drive import World

STEP_LIMITS = SampleLimits(max_new_tokens=100, context_tokens=1000, step_ends=("\n",), step_tokens=20)


def right_is_zero(choices: Sequence[int]) -> float:
    """The score of a path: high as long as every choice was 0."""
    return 0.9 if not any(choices) else 0.2


@dataclass
class StepWorld(World):
    """Every path is `depth` steps of `length` tokens, then the end; each step makes one of `choices`.

    The answer is 7 when all choices were 0, else the choices as digits. `scripts` is not used.

    Args:
        logprob: of each token of a step, by its choice; told where a call asks for it.
        worth: the verifier's score of a path by its choices so far.
        fails: whether a call fails, by itself and the number of calls that failed already.
        endless: paths never end by themselves.
    """

    depth: int = 3
    choices: int = 3
    length: int = 3
    logprob: Callable[[int], float] = lambda choice: -0.5 * choice
    worth: Callable[[Sequence[int]], float] = right_is_zero
    fails: Callable[[Call, int], bool] = lambda _, __: False
    endless: bool = False
    failures: int = 0

    def event_of(self, search: Search, call: Call) -> Event:
        if isinstance(call, Equate):
            return Equated(call.id, self.same(call.answer, call.other))
        if self.fails(call, self.failures):
            self.failures += 1
            return Failed(call.id, "lost")
        if isinstance(call, Score):
            return Scored(call.id, self.worth(self.chosen(search, call.node)))
        assert isinstance(call, Generate)
        return self.written(search, call)

    def chosen(self, search: Search, node: int) -> list[int]:
        """The choices of the path to the end of a node."""
        ids = [t for n in search.tree.path(node) if n != ROOT for t in search.tree[n].token_ids]
        return [t % 10 for t in ids[:: self.length]]

    def written(self, search: Search, call: Generate) -> Event:
        choices = self.chosen(search, call.node)
        done = search.tree.path_tokens(call.node) - search.tree.prompt_tokens
        step, at = divmod(done, self.length)
        sent = bool(search.tree[call.node].token_ids)
        if step >= self.depth and not self.endless:
            return Generated(call.id, "stop")
        if sent and at == 0 and "\n" in call.until:
            return Generated(call.id, "step", "\n", 1)
        if self.left[call.id] == 0:
            return Generated(call.id, "length")
        if at == 0:
            digest = hashlib.blake2b(f"{call.seed}/{step}".encode(), digest_size=4).digest()
            choices = [*choices, int.from_bytes(digest, "big") % self.choices]
        count = min(self.rng.randint(1, self.length - at), self.left[call.id])
        ids = tuple(1000 + 10 * (done + i) + choices[-1] for i in range(count))
        text = "".join(self.piece(at + i, step, choices) for i in range(count))
        logprobs = (self.logprob(choices[-1]),) * count if call.logprobs else ()
        return Chunk(call.id, ids, text, logprobs)

    def piece(self, at: int, step: int, choices: Sequence[int]) -> str:
        if at < self.length - 1:
            return f"{choices[-1]} "
        if step == self.depth - 1 and not self.endless:
            return f"\\boxed{{{''.join(map(str, choices)) if any(choices) else 7}}}"
        return "\n"


@dataclass
class EarlyWorld(StepWorld):
    """A first step that chose 0 is a complete answer."""

    def written(self, search: Search, call: Generate) -> Event:
        done = search.tree.path_tokens(call.node) - search.tree.prompt_tokens
        if done == self.length and self.chosen(search, call.node) == [0]:
            return Generated(call.id, "stop")
        return super().written(search, call)

    def piece(self, at: int, step: int, choices: Sequence[int]) -> str:
        if step == 0 and at == self.length - 1 and list(choices) == [0]:
            return "\\boxed{7}"
        return super().piece(at, step, choices)
