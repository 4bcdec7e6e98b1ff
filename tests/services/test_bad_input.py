from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from guards.budget import Budget
from services.api.chat_schema import ChatRequest
from support.site import Site

CHAT = "/v1/chat/completions"
REASON = "/v1/reason"
HI = [{"role": "user", "content": "hi"}]


def format_with(**fields: Any) -> dict[str, Any]:
    schema = {"name": "a", "schema": {"type": "object"}} | fields
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


async def send(site: Site, path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    start: dict[str, Any] = {"model": "toy"}
    start |= {"messages": HI} if path == CHAT else {"query": "hi"}
    body = {k: v for k, v in (start | fields).items() if v is not ...}
    response = await site.client.post(path, json=body)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error


@pytest.mark.parametrize(
    ("path", "fields", "param", "legal"),
    [
        (CHAT, {"reasoning_effort": "extreme"}, "reasoning_effort", "'low'"),
        (REASON, {"effort": "extreme"}, "effort", "'max'"),
        (CHAT, {"messages": []}, "messages", "at least 1"),
        (CHAT, {"messages": ...}, "messages", "required"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'user'"),
        (CHAT, {"max_tokens": -1}, "max_tokens", "greater than or equal to 1"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        (CHAT, {"n": 2}, "n", "1"),
        (CHAT, {"temperature": 3}, "temperature", "less than or equal to 2"),
        (CHAT, {"temperature": "0.5"}, "temperature", "number"),
        (CHAT, {"top_p": 0}, "top_p", "greater than 0"),
        (CHAT, {"logprobs": True}, "logprobs", "not supported"),
        (CHAT, {"tools": []}, "tools", "not supported"),
        (CHAT, {"cache_salt": "a"}, "cache_salt", "not supported"),
        (CHAT, {"pondera": {"max_total_tokens": -5}}, "pondera.max_total_tokens", "greater than or equal"),
        (CHAT, {"pondera": {"speed": 1}}, "pondera.speed", "not supported"),
        (CHAT, {"pondera": {"technique": "tarot"}}, "technique", "best_of_n"),
        (CHAT, {"stream_options": {"include_usage": True}}, None, "'stream'"),
        (CHAT, {"logit_bias": {"x": 1}}, "logit_bias", "token id"),
        (CHAT, {"logit_bias": {"9" * 5000: 1}}, "logit_bias", "1 to 10"),
        (CHAT, {"logit_bias": {"12345678901": 1}}, "logit_bias", "1 to 10"),
        (CHAT, {"logit_bias": {"": 1}}, "logit_bias", "token id"),
        (CHAT, {"logit_bias": {"²": 1}}, "logit_bias", "0 to 9"),
        (CHAT, {"logit_bias": {"٣": 1}}, "logit_bias", "0 to 9"),
        (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias", "0 to 9"),
        (CHAT, {"logit_bias": {"1\n": 1}}, "logit_bias", "0 to 9"),
        (CHAT, {"logit_bias": {"7": 1, "007": 2}}, "logit_bias", "twice"),
        (CHAT, {"logit_bias": {str(i): 1 for i in range(4097)}}, "logit_bias", "4096"),
        (CHAT, {"logit_bias": {"7": 101}}, "logit_bias.7", "less than or equal to 100"),
        (CHAT, {"n": True}, "n", "integer"),
        (CHAT, {"n": 0}, "n", "1"),
        (CHAT, {"stop": 5}, "stop", "string"),
        (CHAT, format_with(strict=False), "response_format.json_schema.strict", "false cannot"),
        (CHAT, format_with(description="a city"), "response_format.json_schema.description", "not supported"),
        (CHAT, format_with(name="x" * 65), "response_format.json_schema.name", "64"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (REASON, {"query": ...}, None, "exactly one"),
        (REASON, {"messages": HI}, None, "exactly one"),
        (REASON, {"max_total_tokens": 3}, "max_total_tokens", "at least"),
        (REASON, {"deadline_ms": 10**9}, "deadline_ms", "600000"),
        (REASON, {"technique": "best_of_n", "params": {"n": -1}}, "params", "1..1024"),
        (REASON, {"technique": "single", "effort": "low"}, None, "not both"),
        (REASON, {"query": "x" * 600}, "messages", "at most 511"),
        (REASON, {"endpoint": "http://127.0.0.1:1"}, "endpoint", "not supported"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it_and_what_is_legal(
    open_site: Callable[..., Any], path: str, fields: dict[str, Any], param: str | None, legal: str
) -> None:
    async with open_site("Answer: 7") as site:
        status, error = await send(site, path, **fields)
        assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert legal in error["message"]
        assert not site.engine.requests
        assert await site.idle()


def test_a_strict_schema_and_one_that_says_nothing_are_the_same() -> None:
    wishes = set()
    for fields in (format_with(), format_with(strict=True), format_with(strict=None)):
        body = ChatRequest.model_validate({"model": "toy", "messages": HI} | fields)
        wishes.add(body.core().sampling.json_schema)
    assert wishes == {'{"type": "object"}'}


async def test_no_page_loads_scripts_from_elsewhere_and_the_description_is_served(
    open_site: Callable[..., Any],
) -> None:
    async with open_site("x") as site:
        for path in ("/docs", "/redoc"):
            assert (await site.client.get(path)).status_code == 404
        described = (await site.client.get("/openapi.json")).json()
        assert {CHAT, REASON} <= set(described["paths"])


async def test_invalid_json_is_a_400(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        response = await site.client.post(
            CHAT, content=b'{"model": ', headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert "JSON" in response.json()["error"]["message"]


async def test_an_unknown_model_is_a_404_with_those_served(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        status, error = await send(site, CHAT, model="gpt-9")
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "toy" in error["message"]
        assert (await site.client.get("/v1/models/gpt-9")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing"])
async def test_an_unknown_path_is_a_404_error_object(open_site: Callable[..., Any], path: str) -> None:
    async with open_site("x") as site:
        response = await site.client.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"


async def test_a_wrong_method_is_a_405_error_object(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        response = await site.client.get(CHAT)
        assert response.status_code == 405
        assert response.json()["error"]["code"] == "method_not_allowed"
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer nonsense", "Basic eDp5", "Bearer pnd_aaaa_bbbb"])
async def test_without_a_good_key_it_is_a_401_and_no_body_is_looked_at(
    open_site: Callable[..., Any], header: str | None
) -> None:
    async with open_site("x") as site:
        headers = {} if header is None else {"Authorization": header}
        async with httpx.AsyncClient(base_url=site.url, trust_env=False) as stranger:
            response = await stranger.post(REASON, content=b"not json", headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
            assert (await stranger.get("/v1/models", headers=headers)).status_code == 401
            assert (await stranger.get("/healthz")).status_code == 200


async def test_a_body_over_the_limit_is_a_413_declared_or_chunked(open_site: Callable[..., Any]) -> None:
    async with open_site("x", limits={"max_body_bytes": 2000}) as site:
        status, error = await send(site, REASON, query="x" * 3000)
        assert (status, error["code"]) == (413, "body_too_large")
        assert "2000" in error["message"]

        async def pieces() -> Any:
            for _ in range(10):
                yield b"x" * 1000

        assert (await site.client.post(REASON, content=pieces())).status_code == 413


async def test_over_budget_is_a_429_with_retry_after(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7", budget=Budget(minute=300)) as site:
        body = {"model": "toy", "query": "hi", "effort": "medium", "max_total_tokens": 250}
        first = await site.client.post(REASON, json=body)
        assert first.status_code == 200
        used = first.json()["receipt"]["tokens"]["charged"]
        responses = [first]
        while responses[-1].status_code == 200:
            responses.append(await site.client.post(REASON, json=body))
        last = responses[-1]
        assert last.status_code == 429
        assert last.json()["error"]["code"] == "budget_exceeded"
        assert 1 <= int(last.headers["retry-after"]) <= 60
        assert used * (len(responses) - 1) <= 300


async def test_a_suspended_tenant_is_a_403(open_site: Callable[..., Any]) -> None:
    async with open_site("x", budget=Budget(month=0)) as site:
        status, error = await send(site, REASON)
        assert (status, error["code"], error["type"]) == (403, "tenant_suspended", "permission_error")


async def test_an_engine_that_is_away_is_a_503_and_not_ready(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        assert (await site.client.get("/readyz")).status_code == 200
        site.engine.lose()
        status, error = await send(site, CHAT)
        assert (status, error["code"], error["type"]) == (503, "engine_unavailable", "server_error")
        ready = await site.client.get("/readyz")
        assert (ready.status_code, ready.json()["models"]) == (503, {"toy": False})
        assert (await site.client.get("/healthz")).status_code == 200
        site.engine.recover()
        assert (await site.client.get("/readyz")).status_code == 200


async def test_a_failed_search_is_an_error_with_its_receipt_and_no_200(open_site: Callable[..., Any]) -> None:
    from engines.scripted import Behaviour

    async with open_site("x", behave=lambda _, __: Behaviour(hang_after=0)) as site:
        response = await site.client.post(REASON, json={"model": "toy", "query": "hi", "deadline_ms": 50})
        assert response.status_code == 504
        body = response.json()
        assert body["error"]["code"] == "deadline_exceeded"
        assert body["pondera"]["status"] == "failed"
        assert body["pondera"]["receipt"]["stop_reason"] == "deadline"
