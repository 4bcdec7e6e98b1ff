"""Sequential refine: the model criticises its own answer and writes it anew, until that changes nothing.

Algorithm: an inner search (`first`) gives a first answer. Then, at most `rounds` times, the model is asked in
a turn of the user for a critique, and in a further one for a new answer (`revise`), all in one conversation.
The search ends early when an answer comes again (a fixed point, or a cycle), when a check finds an answer
right, or when a new version has no better score than the best before it. `accept="last"` answers with the
last version that has an answer, `scored` with the one of the best score. A version that a check found wrong
stands behind all others.

Source: Madaan et al., "Self-Refine: Iterative Refinement with Self-Feedback", NeurIPS 2023 (arXiv
2303.17651), algorithm 1.

Known limits: without a verifier the model is its own judge, and may talk itself out of a right answer;
`support` is that of the version's own search. Whether an answer has come again is seen by its normal form
alone. A critique may be cut short at the token limit of a sample. The turns are paid for with the call that
follows them, and take up context: where it has no room for another round, the search ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from search.bounds import Bounds
from search.contract import Branch, Call, Candidate, Room, Search
from search.extract import is_thinking
from search.ground import Ground, Turn
from search.nesting import Nest, Stage
from search.nesting_search import NestedSearch, Run
from search.params import MAX_SAMPLES, require_int, require_one_of
from search.sample import ANSWER_RESERVE

CRITIQUE, REVISE = "critique", "revise"
CRITIQUE_TEXT = (
    "Check your answer above step by step. Point out every mistake you find and say how to correct it. "
    "If there is none, say that the answer is correct. Do not write the new answer yet."
)
REVISE_TEXT = (
    "Now write your answer to the original question anew, with all that you found corrected, and in the form "
    "that was asked for."
)
MAX_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class RefineParams:
    """Parameters of `Refine`.

    Args:
        first: the search for the first answer.
        revise: the search for each new answer.
        rounds: how often it is criticised and revised at most.
        accept: which version is the answer: the `last`, or the best by the verifier's score (`scored`).
        check: whether the verifier checks each version.
        max_retries: how many failed critiques of a round are drawn again.

    Raises:
        ValueError: a value is out of its range.
    """

    first: Stage = field(default_factory=lambda: Stage("single"))
    revise: Stage = field(default_factory=lambda: Stage("single"))
    rounds: int = 2
    accept: Literal["last", "scored"] = "last"
    check: bool = False
    max_retries: int = 2

    def __post_init__(self) -> None:
        for name in ("first", "revise"):
            if not isinstance(getattr(self, name), Stage):
                raise ValueError(f"{name} must be a stage")
        require_int("rounds", self.rounds, 1, MAX_ROUNDS)
        require_one_of("accept", self.accept, ("last", "scored"))
        if not isinstance(self.check, bool):
            raise ValueError(f"check must be true or false, not {self.check!r}")
        require_int("max_retries", self.max_retries, 0, MAX_SAMPLES)

    @property
    def critic(self) -> Stage:
        """The search for a critique."""
        return Stage("single", {"max_retries": self.max_retries})

    def phrases(self) -> Mapping[str, Turn | str]:
        """The turns."""
        return {CRITIQUE: Turn(CRITIQUE_TEXT), REVISE: Turn(REVISE_TEXT)}

    def most_tokens(self, bounds: Bounds, inner: Callable[[Stage, Bounds], int]) -> int:
        """Charged tokens at most: all turns, versions, critiques and the verifier's word on each version."""
        turns = sum(
            len(bounds.phrases[name].token_ids) for name in (CRITIQUE, REVISE) if name in bounds.phrases
        )
        word = bounds.costs.check_tokens if self.check else 0
        word += bounds.costs.score_tokens if self.accept == "scored" else 0
        a_round = turns + inner(self.critic, bounds) + inner(self.revise, bounds) + word
        return inner(self.first, bounds) + word + self.rounds * a_round


class Refine(NestedSearch):
    """See the module's docstring.

    `gain()`: that of the first answer's search; once there is an answer, what is missing to its score (to
    one half where it has none) per tokens of one round.

    Raises:
        ValueError: an inner search is refused, or the phrase of a turn is not given.
    """

    def __init__(self, params: RefineParams, ground: Ground, nest: Nest) -> None:
        super().__init__(ground)
        for name in (CRITIQUE, REVISE):
            if name not in ground.phrases or not ground.phrases[name].token_ids:
                raise ValueError(f"refine needs the phrase {name!r}, which is not given")
        self._params = params
        self._nest = nest
        self._first = nest(params.first, ground.nested(0, tier=params.first.tier, unpaid=ground.unpaid))
        # Only to have it refused now if it is to be.
        nest(params.revise, ground.nested(2, tier=params.revise.tier))
        self._scored: set[int] = set()  # numbers of the versions whose score was asked for

    def _next(self, room: Room) -> list[Call]:
        if not self._runs:
            return self._start(self._first, room)
        return self._turn(REVISE if self._is_critique(self._runs[-1]) else CRITIQUE, room)

    def _turn(self, name: str, room: Room) -> list[Call]:
        """Start the inner search of the next turn; nothing at all where the room is too small for it."""
        best = self._runs[-1].candidate
        assert best is not None
        asleep, live = self.tree.live_tokens == 0, self.tree.live_tokens
        token_ids = self._turn_ids(name, best.node)
        turn = self.tree.add_given(best.node, token_ids, "")
        grown = self.tree.live_tokens - live
        if grown < room.kv_tokens:
            search = self._search(name, turn, len(token_ids))
            calls = search.ask(replace(room, kv_tokens=room.kv_tokens - grown))
            if calls:
                self._running = Run(len(self._runs), search, turn)
                self._runs.append(self._running)
                return calls
        self.tree.take_back(turn)
        if asleep:
            self.tree.release()
        return []

    def _search(self, name: str, turn: int, unpaid: int) -> Search:
        number = len(self._runs)
        if name == REVISE:
            tier = self._params.revise.tier
            return self._nest(
                self._params.revise, self._ground.nested(number, root=turn, tier=tier, unpaid=unpaid)
            )
        ground = self._ground.nested(number, root=turn, unpaid=unpaid)
        left = ground.context_left - len(self._ground.phrases[REVISE].token_ids) - self._least
        limits = replace(
            ground.limits,
            max_new_tokens=max(1, min(ground.limits.max_new_tokens, left)),
            whole=False,
            json_answer=False,
            tool_calls=None,
        )
        # A critique is free text, whatever form the answer must have.
        return self._nest(self._params.critic, replace(ground, limits=limits, constrained=False))

    def _turn_ids(self, name: str, node: int) -> tuple[int, ...]:
        """The tokens of a turn, without an end of the model's turn that the model has written itself."""
        token_ids = self._ground.phrases[name].token_ids
        written = self.tree[node].token_ids
        return token_ids[1:] if len(token_ids) > 1 and written and written[-1] == token_ids[0] else token_ids

    @property
    def _least(self) -> int:
        """Tokens that a text needs at least, to be worth its turn."""
        return min(ANSWER_RESERVE, self._ground.limits.max_new_tokens)

    def _is_critique(self, run: Run) -> bool:
        return run.number % 2 == 1

    def _over(self, run: Run) -> None:
        if self._is_critique(run):
            if not self._may_follow(run):
                self._finish("no_critique")
        elif not run.answered:
            self._judge_round(run)
        elif self._params.check:
            self._want("check", run)
        else:
            self._judge(run)

    def _judge(self, run: Run) -> None:
        best = run.candidate
        scored = self._params.accept == "scored" and run.number not in self._scored
        if run.verdict == "right":
            self._finish("verified")
        elif scored and best is not None and best.score is None:
            self._scored.add(run.number)
            self._want("score", run)
        else:
            self._judge_round(run)

    def _judge_round(self, run: Run) -> None:
        reason = self._reason_to_stop(run)
        if reason is not None:
            self._finish(reason)

    def _reason_to_stop(self, run: Run) -> str | None:
        best = run.candidate
        before = [c for r in self._versions() if r is not run and (c := r.candidate) is not None]
        if best is not None and best.key is not None:
            if before and before[-1].key == best.key:
                return "fixed_point"
            if best.key in [c.key for c in before]:
                return "cycle"
            scores = [c.score for c in before if c.score is not None and c.answer is not None]
            by_score = self._params.accept == "scored" and best.score is not None
            if by_score and scores and (best.score or 0.0) <= max(scores):
                return "no_better"
        if not self._may_follow(run):
            return run.search.stop_reason or "all_failed"
        if len(self._versions()) > self._params.rounds:
            return "all_done"
        return None if best is not None and self._fits(best.node) else "context_full"

    def _may_follow(self, run: Run) -> bool:
        """Whether a further turn can follow its text: it has one that was not lost, and no open thinking."""
        best, thinking = run.candidate, self._ground.limits.thinking
        if best is None or run.search.stop_reason == "all_failed":
            return False
        text = self.tree.path_text(best.node, best.begin)
        return bool(text.strip()) and (thinking is None or best.complete or not is_thinking(text, thinking))

    def _fits(self, node: int) -> bool:
        turns = sum(len(self._ground.phrases[name].token_ids) for name in (CRITIQUE, REVISE))
        left = self._ground.limits.context_tokens - self.tree.path_tokens(node)
        return left >= turns + 2 * self._least

    def _versions(self) -> list[Run]:
        return self._runs[::2]

    def _holder(self) -> Run | None:
        versions = [run for run in self._versions() if run.candidate is not None]
        return max(versions, key=self._standing, default=None)

    def _standing(self, run: Run) -> tuple[bool, bool, bool, float, bool, int, int]:
        best = run.candidate
        assert best is not None
        score = -1.0 if self._params.accept == "last" or best.score is None else best.score
        return (
            run.verdict == "right",
            best.answer is not None,
            run.verdict != "wrong",
            score,
            best.complete,
            0 if best.complete else len(self.tree.path_text(best.node, best.begin)),
            run.number,
        )

    def _passed(self, run: Run, branch: Branch, holder: Run | None) -> Branch:
        if self._is_critique(run):
            # Whatever it says, it gives no answer.
            branch = replace(branch, answer=None)
        best, standing = run.candidate, holder.candidate if holder is not None else None
        if branch.fate == "agreed" and (best is None or standing is None or best.key != standing.key):
            return replace(branch, fate="outscored", reason="as a version that does not stand")
        if branch.fate != "chosen":
            return branch
        if best is None or branch.nodes[-1] != best.node:
            return replace(branch, fate="expanded", reason="a step on the way to an earlier text")
        if run is not self._runs[-1] and (standing is None or best.node in self.tree.path(standing.node)):
            what = "a critique that was followed" if self._is_critique(run) else "revised in a later turn"
            return replace(branch, fate="expanded", reason=what)
        if self._is_critique(run):
            return replace(branch, fate="pruned", reason="no better answer came of this critique")
        return replace(branch, fate=self._fate(run, best, standing), reason="an earlier version stands")

    def _fate(self, run: Run, best: Candidate, standing: Candidate | None) -> str:
        if best.answer is None:
            return "no_answer"
        if run.verdict == "wrong":
            return "wrong"
        return "agreed" if standing is not None and best.key == standing.key else "outscored"

    def _reserve(self) -> int:
        if self._running is not None and self._is_critique(self._running):
            return 0
        costs, params = self._ground.costs, self._params
        return (costs.check_tokens if params.check else 0) + (
            costs.score_tokens if params.accept == "scored" else 0
        )

    def _expected_gain(self) -> float:
        best = self.best()
        if best is None or best.answer is None:
            return self._running.search.gain() if self._running is not None else 1.0 / self._round_tokens
        return (0.5 if best.score is None else 1.0 - best.score) / self._round_tokens

    @property
    def _round_tokens(self) -> int:
        return max(1, 2 * self._ground.sample_tokens)
