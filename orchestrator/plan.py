"""From a request to a plan: technique, parameters, sampling, limits. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from engines.protocol import Sampling
from engines.tokenizer import ChatTemplateError
from orchestrator.catalog import ServedModel
from orchestrator.effort import Choice, choose
from orchestrator.phrases import make_phrases
from orchestrator.request import ReasonRequest, RequestRefused, SamplingWish
from orchestrator.settings import LimitSettings
from orchestrator.verifiers.build import Toolbox, build_verifiers
from orchestrator.verifiers.port import Verifiers
from search.contract import Costs
from search.ground import Phrase
from search.log import Header, build
from search.nesting import BadParam, stages_of
from search.registry import TECHNIQUES, Need, Technique, resolve
from search.sample import SampleLimits


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done for a request.

    Args:
        why: why this technique.
        cap: hard limit of charged tokens over prompt, samples and scores.
        verifiers: who answers the search's calls that are no generations.
        phrases: what the search may write itself.
    """

    technique: Technique
    params: Any
    why: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    limits: SampleLimits
    costs: Costs
    verifiers: Verifiers
    phrases: Mapping[str, Phrase]
    cap: int
    deadline_s: float
    seed: int

    @property
    def header(self) -> Header:
        """All that the search is built from."""
        return Header(
            technique=self.technique.name,
            params=self.params,
            limits=self.limits,
            costs=self.costs,
            seed=self.seed,
            prompt_ids=self.prompt_ids,
            phrases=self.phrases,
        )


def make_plan(
    request: ReasonRequest,
    model: ServedModel,
    limits: LimitSettings,
    seed: int,
    tools: Toolbox,
    *,
    allow_code: bool = False,
) -> Plan:
    """Resolve a request against a model.

    Args:
        tools: what verifiers need beside engines.
        allow_code: whether the tenant may have code run.
        seed: the search's seed, drawn by the caller where the request has none.

    Raises:
        RequestRefused: a field cannot be honoured; names the field and what would be legal.
    """
    prompt_ids = _prompt(request, model)
    most_new = min(model.context_tokens, model.kv_tokens) - len(prompt_ids)
    verifiers = build_verifiers(
        request,
        model,
        tools,
        allow_code=allow_code,
        prompt_tokens=len(prompt_ids),
        new_tokens=min(most_new, request.max_new_tokens or model.defaults.max_new_tokens),
    )
    choice = _choice(request, model, verifiers)
    technique = TECHNIQUES[choice.technique]
    params = _params(technique, choice.params)
    _check_nested(technique, params)
    _refuse_missing(technique, technique.needs(params), model, verifiers)
    costs = _costs(technique.needs(params), verifiers, len(prompt_ids), most_new)
    max_new = _max_new(request, model, len(prompt_ids), costs.score_tokens)
    costs = _costs(technique.needs(params), verifiers, len(prompt_ids), max_new)
    whole = _needs_whole_samples(request.sampling)
    sample_limits = SampleLimits(
        max_new_tokens=max_new,
        context_tokens=min(model.context_tokens, model.kv_tokens),
        thinking=model.thinking,
        whole=whole,
        json_answer=request.sampling.json_schema is not None,
        step_ends=model.step_ends,
        step_tokens=min(model.step_tokens, max_new),
        equate=verifiers.equator is not None,
    )
    phrases = make_phrases(technique, params, model)
    # Retries draw on what the samples that did not fail have left.
    unfailing = replace(params, max_retries=0) if hasattr(params, "max_retries") else params
    most = technique.most_tokens(unfailing, sample_limits, costs, len(prompt_ids), phrases)
    judging = costs.score_tokens + costs.check_tokens
    cap = _cap(request, limits, len(prompt_ids), judging, len(prompt_ids) + most)
    if whole or model.thinking is not None:
        # One call must do, or the end of thinking must come in time: the sample has to fit under the cap.
        max_new = min(max_new, cap - len(prompt_ids) - judging)
        sample_limits = replace(sample_limits, max_new_tokens=max_new)
    single = technique.name == "single"
    plan = Plan(
        technique=technique,
        params=params,
        why=choice.why,
        prompt_ids=prompt_ids,
        sampling=_sampling(request.sampling, model, max_new, single),
        limits=sample_limits,
        costs=costs,
        verifiers=verifiers,
        phrases=phrases,
        cap=cap,
        deadline_s=_deadline_ms(request, limits) / 1000,
        seed=seed,
    )
    try:
        build(plan.header)
    except ValueError as e:
        # What the technique cannot do with this model, such as a thinking budget where nothing thinks.
        raise RequestRefused(f"{technique.name}: {e}", field="params", code="invalid_params") from None
    return plan


def _check_nested(technique: Technique, params: Any) -> None:
    try:
        technique.check(params)
    except BadParam as e:
        path = f"params.{e.path}" if e.path else "params"
        raise RequestRefused(f"{technique.name} {path}: {e.why}", field=path, code="invalid_params") from None
    for name, stage in stages_of(params):
        if stage.tier:
            raise RequestRefused(
                f"{technique.name} params.{name}.tier is {stage.tier}; this server has one tier, 0",
                field=f"params.{name}.tier",
                code="invalid_params",
            )
        _check_nested(*resolve(stage))


def _costs(needs: frozenset[Need], verifiers: Verifiers, prompt: int, new: int) -> Costs:
    """What judgements cost at most, for paths of so many tokens."""
    s, c, p = verifiers.scorer, verifiers.checker, verifiers.comparer
    return Costs(
        score_tokens=s.most_tokens(prompt, new) if s is not None and "score" in needs else 0,
        check_tokens=c.most_tokens(prompt, new) if c is not None and "check" in needs else 0,
        compare_tokens=p.most_compare_tokens() if p is not None and "compare" in needs else 0,
    )


def _refuse_missing(
    technique: Technique, needs: frozenset[Need], model: ServedModel, verifiers: Verifiers
) -> None:
    have = {"score": verifiers.scorer, "check": verifiers.checker, "compare": verifiers.comparer}
    for need in sorted(needs):
        if have[need] is None:
            raise RequestRefused(
                f"technique {technique.name!r} needs a verifier that can {need}, and {model.name!r} has none "
                f"for this query; techniques without one: {', '.join(_unscored())}",
                field="technique",
                code="no_verifier",
            )


def _needs_whole_samples(wish: SamplingWish) -> bool:
    """Whether a sample cannot be continued by a second call: grammars and penalties start anew in each."""
    penalties = (wish.frequency_penalty or 0, wish.presence_penalty or 0, (wish.repetition_penalty or 1) - 1)
    return wish.json_schema is not None or wish.regex is not None or any(penalties)


def _choice(request: ReasonRequest, model: ServedModel, verifiers: Verifiers) -> Choice:
    greedy = request.sampling.temperature == 0
    if request.technique is None:
        if request.params:
            raise RequestRefused(
                "'params' need a 'technique'", field="params", code="params_without_technique"
            )
        return choose(request.effort, can_score=verifiers.scorer is not None, greedy=greedy)
    if request.technique not in TECHNIQUES:
        raise RequestRefused(
            f"unknown technique {request.technique!r}; legal: {', '.join(TECHNIQUES)}",
            field="technique",
            code="unknown_technique",
        )
    if greedy and request.technique != "single":
        raise RequestRefused(
            f"temperature 0 makes all samples of {request.technique!r} equal; give one above 0",
            field="temperature",
            code="temperature_too_low",
        )
    return Choice(request.technique, request.params, "named by the client")


def _params(technique: Technique, given: Mapping[str, object]) -> Any:
    legal = ", ".join(technique.params_type.__dataclass_fields__)
    for name in given:
        if name not in technique.params_type.__dataclass_fields__:
            shown = name[:64].encode("ascii", "backslashreplace").decode()
            raise RequestRefused(
                f"{technique.name} has no parameter {shown!r}; parameters: {legal}",
                field=f"params.{shown}",
                code="invalid_params",
            )
    try:
        # By way of JSON, since strict mode takes a dataclass from Python only as an instance of it.
        return TypeAdapter(technique.params_type).validate_json(orjson.dumps(given), strict=True)
    except TypeError:
        # Integers beyond 64 bits, lone surrogates, or nesting that no parameter has.
        raise RequestRefused(
            f"{technique.name} params: a value is out of every range; parameters: {legal}",
            field="params",
            code="invalid_params",
        ) from None
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        name = ".".join(str(p) for p in first["loc"])
        raise RequestRefused(
            f"{technique.name} params{'.' + name if name else ''}: {first['msg']}; parameters: {legal}",
            field=f"params.{name}" if name else "params",
            code="invalid_params",
        ) from None


def _unscored() -> list[str]:
    return [t.name for t in TECHNIQUES.values() if not t.needs(t.params_type())]


def _prompt(request: ReasonRequest, model: ServedModel) -> tuple[int, ...]:
    messages = [{"role": m.role, "content": m.content} for m in request.messages]
    try:
        ids = model.tokenizer.encode_chat(messages)
        bare = [m for m in messages if m["role"] != "system"]
        ignored = len(bare) < len(messages) and bool(bare) and model.tokenizer.encode_chat(bare) == ids
    except ChatTemplateError as e:
        raise RequestRefused(
            f"the chat template of {model.name!r} refused the messages: {e}",
            field="messages",
            code="template_error",
        ) from None
    if ignored:
        raise RequestRefused(
            f"the chat template of {model.name!r} has no place for system messages and would drop them",
            field="messages",
            code="system_message_unsupported",
        )
    room = min(model.context_tokens, model.kv_tokens)
    if len(ids) >= room:
        raise RequestRefused(
            f"the prompt has {len(ids)} tokens; {model.name!r} takes at most {room - 1} and one to answer",
            field="messages",
            code="context_length_exceeded",
        )
    return ids


def _max_new(request: ReasonRequest, model: ServedModel, prompt: int, score_tokens: int) -> int:
    """Tokens of one sample: what was asked, within the context, with place left for the verifier's suffix."""
    room = min(model.context_tokens, model.kv_tokens) - prompt - score_tokens
    if room < 1:
        raise RequestRefused(
            f"the prompt has {prompt} tokens, which leaves no room for an answer and its score in the "
            f"{model.context_tokens} tokens of {model.name!r}",
            field="messages",
            code="context_length_exceeded",
        )
    return min(request.max_new_tokens or model.defaults.max_new_tokens, room)


def _cap(request: ReasonRequest, limits: LimitSettings, prompt: int, score: int, needed: int) -> int:
    least = prompt + 1 + score
    if request.max_total_tokens is None:
        if least > limits.max_total_tokens:
            raise RequestRefused(
                f"the prompt has {prompt} tokens; the limit of one request is {limits.max_total_tokens}",
                field="messages",
                code="request_too_large",
            )
        return min(needed, limits.max_total_tokens)
    if request.max_total_tokens < least:
        raise RequestRefused(
            f"max_total_tokens is {request.max_total_tokens}; this prompt needs at least {least}",
            field="max_total_tokens",
            code="cap_too_small",
        )
    # A cap above what the plan can spend reserves no more than that.
    return min(request.max_total_tokens, limits.max_total_tokens, needed)


def _deadline_ms(request: ReasonRequest, limits: LimitSettings) -> int:
    if request.deadline_ms is None:
        return limits.default_deadline_ms
    if request.deadline_ms > limits.max_deadline_ms:
        raise RequestRefused(
            f"deadline_ms is {request.deadline_ms}; legal: 1 to {limits.max_deadline_ms}",
            field="deadline_ms",
            code="deadline_too_long",
        )
    return request.deadline_ms


def _sampling(wish: SamplingWish, model: ServedModel, max_new: int, single: bool) -> Sampling:
    temperature = wish.temperature
    if temperature is None:
        temperature = 0.0 if single else model.defaults.temperature
    given = {
        "top_p": wish.top_p,
        "top_k": wish.top_k,
        "min_p": wish.min_p,
        "frequency_penalty": wish.frequency_penalty,
        "presence_penalty": wish.presence_penalty,
        "repetition_penalty": wish.repetition_penalty,
    }
    return Sampling(
        max_new_tokens=max_new,
        temperature=temperature,
        stop=wish.stop,
        logit_bias=wish.logit_bias,
        json_schema=wish.json_schema,
        regex=wish.regex,
        **{k: v for k, v in given.items() if v is not None},  # type: ignore[arg-type]
    )
