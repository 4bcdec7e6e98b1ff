"""A language model that judges the answers of one query: alone, and in pairs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from engines.protocol import Engine, EngineLost, ScoreRequest, Scores, Usage
from orchestrator.verifiers.judge import PointwiseCase, PointwiseJudge
from orchestrator.verifiers.judge_form import JudgeForm, PairForm
from orchestrator.verifiers.judge_prompt import Answer, Ask, JudgeTokenizer, NotJudged, Settled
from orchestrator.verifiers.pairwise import PairwiseCase, PairwiseJudge
from orchestrator.verifiers.port import Judgement, Subject
from search.extract import ThinkingMarkers, visible_text

_MARGIN = 64


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model that can judge.

    Args:
        tokenizer, context_tokens: of the judge model.
        pick: one of its replicas that is ready, or None.
        thinking: of the model whose answers are judged; their thinking is not shown to the judge.
        form, pair_form: how it is asked.
    """

    tokenizer: JudgeTokenizer
    context_tokens: int
    pick: Callable[[], Awaitable[Engine | None]]
    thinking: ThinkingMarkers | None = None
    form: JudgeForm = field(default_factory=JudgeForm)
    pair_form: PairForm = field(default_factory=PairForm)

    def for_query(self, prompt_tokens: int, new_tokens: int) -> LlmJudge:
        """A judge of one query's answers, for a prompt and answers of so many tokens.

        Quoted and in another model's tokens they may be longer; what is more than twice as long, and a bit,
        is not judged. So its cost is bounded by the query and not by the form.
        """
        question = min(self.form.max_question_tokens, 2 * prompt_tokens + _MARGIN)
        answer = min(self.form.max_answer_tokens, 2 * new_tokens + _MARGIN)
        form = replace(self.form, max_question_tokens=question, max_answer_tokens=answer)
        pair_form = replace(self.pair_form, max_question_tokens=question, max_answer_tokens=answer)
        return LlmJudge(replace(self, form=form, pair_form=pair_form))

    def check(self) -> None:
        """Make sure that the model can be asked.

        Raises:
            JudgeUnavailable: it cannot, in one of these forms.
        """
        PointwiseJudge(self.tokenizer, self.form, self.context_tokens)
        PairwiseJudge(self.tokenizer, self.pair_form, self.context_tokens)


class LlmJudge:
    """Judges the answers of one query. What its prompts share is charged once.

    Args:
        model: passed its `check`; its forms are bounded for the query.
    """

    name = "judge"

    def __init__(self, model: JudgeModel) -> None:
        self._model = model
        # The query's question, put into the judge's tokens once.
        self._case: PointwiseCase | None = None
        self._pair_case: PairwiseCase | None = None
        self._engine: Engine | None = None  # one replica, which has the shared prefix in its cache
        self._shared_paid: set[str] = set()

    # Most queries have a judge at hand and never ask it.
    @cached_property
    def _pointwise(self) -> PointwiseJudge:
        return PointwiseJudge(self._model.tokenizer, self._model.form, self._model.context_tokens)

    @cached_property
    def _pairwise(self) -> PairwiseJudge:
        return PairwiseJudge(self._model.tokenizer, self._model.pair_form, self._model.context_tokens)

    def most_tokens(self, prompt_tokens: int, new_tokens: int) -> int:
        return self._pointwise.most_shared_tokens + self._pointwise.most_own_tokens

    def most_compare_tokens(self) -> int:
        return self._pairwise.most_shared_tokens + self._pairwise.most_own_tokens

    async def score(self, subject: Subject) -> Judgement:
        judge = self._pointwise
        try:
            asked = self._open(subject).ask(self._answer(subject))
        except NotJudged as e:
            return Judgement(reason=f"{e.reason}: {e}")
        if isinstance(asked, Settled):
            return Judgement(score=asked.score)
        scores = await self._ask(asked, subject, subject.call_id)
        paid = asked.own_tokens + self._shared("pointwise", asked)
        try:
            score, reason = judge.read(scores.probabilities), ""
        except NotJudged as e:
            score, reason = None, f"{e.reason}: {e}"
        return Judgement(score, None, paid, scores.usage, scores.engine_s, reason)

    async def compare(self, first: Subject, second: Subject) -> Judgement:
        judge = self._pairwise
        try:
            asked = self._open_pair(first).ask(self._answer(first), self._answer(second))
        except NotJudged as e:
            return Judgement(reason=f"{e.reason}: {e}")
        if isinstance(asked, Settled):
            return Judgement(score=asked.score)
        # One after the other: sent together they would not find each other's prefix.
        forward = await self._ask(asked.forward, first, f"{first.call_id}-ab")
        backward = await self._ask(asked.backward, first, f"{first.call_id}-ba")
        paid = asked.own_tokens + self._shared("pairwise", asked.forward)
        try:
            score, reason = judge.read(forward.probabilities, backward.probabilities), ""
        except NotJudged as e:
            score, reason = None, f"{e.reason}: {e}"
        return Judgement(score=score, tokens=paid, usage=_sum(forward.usage, backward.usage), reason=reason)

    def _open(self, subject: Subject) -> PointwiseCase:
        if self._case is None:
            self._case = self._pointwise.open(subject.question)
        return self._case

    def _open_pair(self, subject: Subject) -> PairwiseCase:
        if self._pair_case is None:
            self._pair_case = self._pairwise.open(subject.question)
        return self._pair_case

    def _answer(self, subject: Subject) -> Answer:
        # A search asks for complete answers and for steps it may go on from, never for a text cut short.
        return Answer(visible_text(subject.text, self._model.thinking))

    def _shared(self, kind: str, asked: Ask) -> int:
        """Tokens of what all prompts of this kind share, once."""
        if kind in self._shared_paid:
            return 0
        self._shared_paid.add(kind)
        return asked.shared_tokens

    async def _ask(self, asked: Ask, subject: Subject, call_id: str) -> Scores:
        if self._engine is None or not await self._engine.ready():
            self._engine = await self._model.pick()
        if self._engine is None:
            raise EngineLost("no engine of the judge model is ready")
        request = ScoreRequest(
            call_id, asked.input_ids, asked.label_ids, cache_salt=subject.cache_salt, trace=subject.trace
        )
        return await self._engine.score(request)


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(
        first.prompt_tokens + second.prompt_tokens,
        first.cached_tokens + second.cached_tokens,
        first.completion_tokens + second.completion_tokens,
    )
