"""Starts the engines of all models, and makes of them what the orchestrator serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from engines.models import ModelFiles
from engines.protocol import Engine
from engines.ray_engine import start_engine
from engines.spec import EngineSpec
from engines.tokenizer import ModelTokenizer
from guards.sandbox import Sandbox
from orchestrator.catalog import ModelDefaults, Replicas, ServedModel
from orchestrator.gauge import Gauge
from orchestrator.processes import end_task
from orchestrator.settings import ModelSettings, Settings
from orchestrator.verifiers.build import Toolbox
from orchestrator.verifiers.code_check import CodeTool
from orchestrator.verifiers.generative import GenerativeReward, ProcessReward
from orchestrator.verifiers.head_scorer import HeadReward
from orchestrator.verifiers.llm_judge import JudgeModel
from orchestrator.verifiers.math_check import Mathematics
from orchestrator.verifiers.math_pool import MathPool
from orchestrator.verifiers.port import Scorer
from orchestrator.verifiers.reward_head import make_reward_head
from search.extract import ThinkingMarkers

_log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Told of a step's name and how far it is, 0..1."""


async def start_tools(settings: Settings, stack: AsyncExitStack) -> Toolbox:
    """Mathematics and the sandbox; both get ready while the service starts to serve."""
    pool = MathPool()
    stack.push_async_callback(pool.close)
    # So that the first query that needs it does not wait for its start.
    warming = asyncio.create_task(pool.equal("x+1", "1+x"))
    stack.push_async_callback(end_task, warming)
    if not settings.code_verifier:
        return Toolbox(Mathematics(pool))
    sandbox = Sandbox()
    stack.push_async_callback(sandbox.close)
    code = CodeTool(sandbox)

    async def prepare() -> None:
        missing = await code.prepare()
        if missing is not None:
            _log.warning("the code verifier is off: %s", missing)

    checking = asyncio.create_task(prepare())
    stack.push_async_callback(end_task, checking)
    return Toolbox(Mathematics(pool), code)


async def start_models(
    settings: Settings, files: dict[str, ModelFiles], stack: AsyncExitStack, progress: Progress
) -> dict[str, ServedModel]:
    specs = [(m, i, _spec(m, files[m.name], i)) for m in settings.models for i in range(m.replicas)]
    started = 0

    async def start(spec: EngineSpec) -> Engine:
        nonlocal started
        engine = await start_engine(spec)
        stack.push_async_callback(engine.close)
        started += 1
        progress("start engines", started / len(specs))
        return engine

    progress("start engines", 0.0)
    starts = [asyncio.create_task(start(spec)) for _, _, spec in specs]
    try:
        engines = await asyncio.gather(*starts)
    except BaseException:
        for task in starts:
            task.cancel()
        await asyncio.wait(starts)
        raise
    by_model: dict[str, list[Engine]] = {m.name: [] for m in settings.models}
    for (model, _, _), engine in zip(specs, engines, strict=True):
        by_model[model.name].append(engine)
    tokenizers = {
        m.name: await asyncio.to_thread(ModelTokenizer, files[m.name].path) for m in settings.models
    }
    models = {
        m.name: await _serve(m, files[m.name], tokenizers[m.name], by_model[m.name])
        for m in settings.models
        if m.role == "generate"
    }
    return {
        m.name: _with_verifiers(m, files, tokenizers, by_model, models)
        for m in settings.models
        if m.name in models
    }


def _with_verifiers(
    model: ModelSettings,
    files: dict[str, ModelFiles],
    tokenizers: dict[str, ModelTokenizer],
    engines: dict[str, list[Engine]],
    models: dict[str, ServedModel],
) -> ServedModel:
    """A served model with those of other models that judge its paths and answers."""
    served = models[model.name]
    if model.reward_model is not None:
        head = files[model.reward_model].reward_head
        assert head is not None, "its role is checked before its engine starts"
        form = make_reward_head(head, tokenizers[model.reward_model], tokenizers[model.name])
        served = replace(served, scorer=HeadReward(form, Replicas(tuple(engines[model.reward_model])).pick))
    if model.judge_model is not None:
        judge = models[model.judge_model]
        tokenizer = tokenizers[model.judge_model]
        judging = JudgeModel(tokenizer, judge.context_tokens, judge.pick, thinking=served.thinking)
        judging.check()
        served = replace(served, judge=judging)
    return served


def _spec(model: ModelSettings, files: ModelFiles, replica: int) -> EngineSpec:
    if (files.reward_head is not None) != (model.role == "reward"):
        raise ValueError(f"model {model.name!r}: its files are not those of the role {model.role!r}")
    return EngineSpec(
        role=model.role,
        name=f"{model.name.replace('/', '-')}-{replica}",
        model_path=str(files.path.resolve()),
        device=model.device,
        dtype=model.dtype,
        max_total_tokens=model.max_total_tokens,
        max_running_requests=model.max_running_requests,
        threads=model.threads,
        context_tokens=model.context_tokens,
        stream_interval=model.stream_interval,
        gpus=1.0 if model.device == "cuda" else 0.0,
        engine_args=model.engine_args,
    )


async def _serve(
    model: ModelSettings, files: ModelFiles, tokenizer: ModelTokenizer, engines: list[Engine]
) -> ServedModel:
    info = await engines[0].info()
    return ServedModel(
        name=model.name,
        engines=tuple(engines),
        tokenizer=tokenizer,
        defaults=ModelDefaults(model.max_new_tokens, model.temperature),
        context_tokens=info.context_tokens,
        kv_tokens=info.kv_tokens_total,
        gauge=Gauge(info.max_running * len(engines), info.kv_tokens_total * len(engines)),
        scorer=_scorer(files, tokenizer),
        thinking=_thinking(model, files),
        step_ends=model.step_ends,
        step_tokens=model.step_tokens,
        created=int(time.time()),
    )


def _thinking(model: ModelSettings, files: ModelFiles) -> ThinkingMarkers | None:
    if model.thinking is not None:
        return ThinkingMarkers(model.thinking.open, model.thinking.close, model.thinking.starts_inside)
    return None if files.thinking is None else ThinkingMarkers(*files.thinking)


def _scorer(files: ModelFiles, tokenizer: ModelTokenizer) -> Scorer | None:
    form = files.process_reward
    if form is None:
        return None
    right, wrong = form.labels
    return GenerativeReward(
        ProcessReward(
            suffix_ids=tokenizer.encode(form.suffix),
            right_id=tokenizer.token_id(right),
            wrong_id=tokenizer.token_id(wrong),
            strip_ids=frozenset(tokenizer.encode(form.strip)) | frozenset(tokenizer.eos_ids),
        )
    )
