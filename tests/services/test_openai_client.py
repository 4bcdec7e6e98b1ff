"""The official `openai` package against our API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engines.scripted import Behaviour
from support.site import Site

HI: list[Any] = [{"role": "user", "content": "hi"}]
TECHNIQUES = ["single", "self_consistency", "best_of_n"]


def client_of(site: Site, key: str | None = None) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(
        base_url=f"{site.url}/v1", api_key=key or site.key, http_client=http, max_retries=0
    )


def extras(technique: str) -> dict[str, Any]:
    return {"pondera": {"technique": technique}}


@pytest.mark.parametrize("technique", TECHNIQUES)
async def test_case_52_a_plain_answer_has_the_whole_openai_shape(
    open_site: Callable[..., Any], technique: str
) -> None:
    async with open_site("step\nAnswer: 7") as site, client_of(site) as client:
        answer = await client.chat.completions.create(model="toy", messages=HI, extra_body=extras(technique))
        ChatCompletion.model_validate(answer.model_dump(), strict=True)
        assert answer.id.startswith("chatcmpl-")
        assert answer.object == "chat.completion"
        assert answer.created > 1_600_000_000
        assert answer.model == "toy"
        assert [c.index for c in answer.choices] == [0]
        assert answer.choices[0].message.content == "step\nAnswer: 7"
        assert answer.choices[0].finish_reason == "stop"
        usage = answer.usage
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.completion_tokens_details is not None
        text = len("step\nAnswer: 7") + 1
        assert usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens - text
        assert usage.prompt_tokens_details is not None
        pondera: Any = answer.model_extra
        assert pondera["pondera"]["answer"] == "7"
        assert pondera["pondera"]["receipt"]["tokens"]["charged"] == usage.total_tokens


@pytest.mark.parametrize("technique", TECHNIQUES)
async def test_case_56_a_stream_is_standard_chunks_to_the_end(
    open_site: Callable[..., Any], technique: str
) -> None:
    async with open_site("step\nAnswer: 7") as site, client_of(site) as client:
        stream = await client.chat.completions.create(
            model="toy",
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extras(technique),
        )
        chunks: list[ChatCompletionChunk] = [c async for c in stream]
        assert len({c.id for c in chunks}) == 1
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "step\nAnswer: 7"
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
        assert finishes[-1] == "stop"
        assert set(finishes[:-1]) == {None}
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens > 0
        assert all(c.usage is None for c in chunks[:-1])
        last: Any = chunks[-2].model_extra
        assert last["pondera"]["answer"] == "7"


async def test_a_stream_ends_with_done_and_carries_the_search_id(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7") as site:
        body = {"model": "toy", "messages": HI, "stream": True}
        response = await site.client.post("/v1/chat/completions", json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-pondera-search-id"].startswith("srch-")
        events = [line for line in response.text.split("\n\n") if line]
        assert events[-1] == "data: [DONE]"
        assert all(e.startswith("data: ") for e in events)


async def test_a_single_sample_is_streamed_while_it_is_written(open_site: Callable[..., Any]) -> None:
    text = "one two three four five"
    async with open_site(text, behave=lambda _, __: Behaviour(chunk_tokens=4, delay_s=0.01)) as site:
        async with client_of(site) as client:
            stream = await client.chat.completions.create(
                model="toy", messages=HI, stream=True, reasoning_effort="low"
            )
            pieces = [c.choices[0].delta.content for c in [c async for c in stream] if c.choices]
        assert "".join(p or "" for p in pieces) == text
        assert len([p for p in pieces if p]) >= 5


async def test_errors_are_the_packages_own_exceptions(open_site: Callable[..., Any]) -> None:
    async with (
        open_site("x", behave=lambda _, __: Behaviour(lost_after=0)) as site,
        client_of(site) as client,
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nope", messages=HI)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="toy", messages=HI, n=3)
        assert bad.value.param == "n"
        with pytest.raises(openai.InternalServerError) as lost:
            await client.chat.completions.create(model="toy", messages=HI)
        assert lost.value.status_code == 503
        with pytest.raises(openai.InternalServerError) as streamed:
            await client.chat.completions.create(model="toy", messages=HI, stream=True)
        assert streamed.value.status_code == 503
        async with client_of(site, "pnd_wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()


async def test_a_failure_in_the_middle_of_a_stream_is_an_error_event_and_no_answer(
    open_site: Callable[..., Any],
) -> None:
    async with open_site("one two three", behave=lambda _, __: Behaviour(hang_after=4)) as site:
        body = {
            "model": "toy",
            "messages": HI,
            "stream": True,
            "reasoning_effort": "low",
            "pondera": {"deadline_ms": 200},
        }
        response = await site.client.post("/v1/chat/completions", json=body)
        events = [e.removeprefix("data: ") for e in response.text.split("\n\n") if e]
        assert events[-1] == "[DONE]"
        assert '"finish_reason":"length"' in events[-2]
        assert '"status":"partial"' in events[-2]


async def test_models_are_listed_and_found(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site, client_of(site) as client:
        assert [m.id async for m in await client.models.list()] == ["toy"]
        assert (await client.models.retrieve("toy")).owned_by == "pondera"


async def test_multi_turn_system_and_parts_reach_the_prompt(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7") as site, client_of(site) as client:
        messages: list[Any] = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ]
        await client.chat.completions.create(model="toy", messages=messages, reasoning_effort="low")
        prompt = "".join(map(chr, site.engine.requests[0].input_ids))
        assert prompt == "[be brief]u:ab\na:c\nu:d\na:"


async def test_case_25_the_clients_sampling_is_seen_by_the_engine(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7") as site, client_of(site) as client:
        await client.chat.completions.create(
            model="toy",
            messages=HI,
            temperature=0.3,
            top_p=0.6,
            max_completion_tokens=33,
            frequency_penalty=0.1,
            presence_penalty=-0.2,
            stop=["zz"],
            seed=11,
            logit_bias={"65": 3},
            extra_body={
                "pondera": {"technique": "single", "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1}
            },
        )
        s = site.engine.requests[0].sampling
        assert (s.temperature, s.top_p, s.max_new_tokens, s.stop) == (0.3, 0.6, 33, ("zz",))
        assert (s.frequency_penalty, s.presence_penalty, s.repetition_penalty) == (0.1, -0.2, 1.1)
        assert (s.top_k, s.min_p, s.logit_bias) == (5, 0.01, ((65, 3),))
        assert s.seed is not None


async def test_a_stop_string_is_not_in_the_text(open_site: Callable[..., Any]) -> None:
    async with open_site("one END two") as site, client_of(site) as client:
        answer = await client.chat.completions.create(
            model="toy", messages=HI, stop="END", reasoning_effort="low"
        )
        assert answer.choices[0].message.content == "one "
        assert answer.choices[0].finish_reason == "stop"


async def test_a_limit_of_tokens_is_finish_reason_length(open_site: Callable[..., Any]) -> None:
    async with open_site("a long text that goes on") as site, client_of(site) as client:
        answer = await client.chat.completions.create(
            model="toy", messages=HI, max_completion_tokens=6, reasoning_effort="low"
        )
        assert answer.choices[0].message.content == "a long"
        assert answer.choices[0].finish_reason == "length"
        extra: Any = answer.model_extra
        assert extra["pondera"]["status"] == "partial"
        assert extra["pondera"]["answer"] is None
