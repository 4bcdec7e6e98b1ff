"""Conversations: what may be sent, how much of it, and answers that go back as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from orchestrator.settings import LimitSettings
from support.site import Site

CHAT = "/v1/chat/completions"
REASON = "/v1/reason"
USER = {"role": "user", "content": "hi"}


async def refused(site: Site, path: str, **fields: Any) -> tuple[str | None, str]:
    body: dict[str, Any] = {"model": "toy"} | fields
    response = await site.client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert not site.engine.requests
    error = response.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("dump", ["object", "dump", "dump_unset"])
async def test_our_own_message_can_be_sent_back_with_the_official_package(
    open_site: Callable[..., Any], dump: str
) -> None:
    async with open_site("Answer: 7") as site:
        http = httpx.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{site.url}/v1", api_key=site.key, http_client=http, max_retries=0
        ) as client:
            messages: list[Any] = [USER]
            first = await client.chat.completions.create(
                model="toy", messages=messages, reasoning_effort="low"
            )
            message = first.choices[0].message
            forms = {
                "object": message,
                "dump": message.model_dump(),
                "dump_unset": message.model_dump(exclude_unset=True),
            }
            messages += [forms[dump], {"role": "user", "content": "and then?"}]
            await client.chat.completions.create(model="toy", messages=messages, reasoning_effort="low")
        prompt = "".join(map(chr, site.engine.requests[-1].input_ids))
        assert prompt == "u:hi\na:Answer: 7\nu:and then?\na:"


async def test_empty_fields_of_openais_are_taken(open_site: Callable[..., Any]) -> None:
    empty: dict[str, Any] = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [],
        "function_call": None,
    }
    messages = [USER, {"role": "assistant", "content": "x"} | empty, USER]
    async with open_site("Answer: 7") as site:
        for path in (CHAT, REASON):
            response = await site.client.post(path, json={"model": "toy", "messages": messages})
            assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("refusal", "no"),
        ("refusal", []),
        ("annotations", [{"type": "url_citation"}]),
        ("audio", {"id": "a"}),
        ("tool_calls", [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        ("tool_calls", {}),
        ("function_call", {"name": "f", "arguments": "{}"}),
        ("name", "bob"),
        ("content", None),
        ("content", []),
        ("content", 5),
    ],
)
async def test_what_a_message_cannot_carry_is_refused_by_name(
    open_site: Callable[..., Any], field: str, value: Any
) -> None:
    message = {"role": "assistant", "content": "x"} | {field: value}
    async with open_site("x") as site:
        for path in (CHAT, REASON):
            param, text = await refused(site, path, messages=[USER, message, USER])
            assert param == f"messages.1.{field}"
            assert field in text


async def test_the_limit_of_messages_is_the_setting_on_both_routes(open_site: Callable[..., Any]) -> None:
    async with open_site("Answer: 7", limits={"max_messages": 3}) as site:
        for path in (CHAT, REASON):
            assert await refused(site, path, messages=[USER] * 4) == (
                "messages",
                "messages: 4 messages are more than the limit of 3",
            )
        for path in (CHAT, REASON):
            body = {"model": "toy", "messages": [USER] * 3}
            assert (await site.client.post(path, json=body)).status_code == 200


async def test_a_limit_above_the_default_is_honoured(open_site: Callable[..., Any]) -> None:
    many = LimitSettings().max_messages + 50
    async with open_site("Answer: 7", limits={"max_messages": many}, context_tokens=4096) as site:
        body = {"model": "toy", "messages": [USER] * many}
        assert (await site.client.post(CHAT, json=body)).status_code == 200
        assert (await refused_after(site, many + 1)) == "messages"


async def refused_after(site: Site, count: int) -> str | None:
    response = await site.client.post(REASON, json={"model": "toy", "messages": [USER] * count})
    assert response.status_code == 400
    param: str | None = response.json()["error"]["param"]
    return param


@pytest.mark.parametrize("empty", ["", " \n", [{"type": "text", "text": ""}]])
async def test_an_empty_user_message_is_refused(open_site: Callable[..., Any], empty: Any) -> None:
    async with open_site("x") as site:
        for path in (CHAT, REASON):
            messages = [USER, {"role": "user", "content": empty}]
            param, text = await refused(site, path, messages=messages)
            assert param == "messages.1.content"
            assert "empty" in text
        if isinstance(empty, str):
            assert (await refused(site, REASON, query=empty))[0] == "query"


async def test_an_empty_message_of_another_role_is_taken(open_site: Callable[..., Any]) -> None:
    messages = [USER, {"role": "assistant", "content": ""}, USER]
    async with open_site("Answer: 7") as site:
        response = await site.client.post(CHAT, json={"model": "toy", "messages": messages})
        assert response.status_code == 200


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_a_conversation_without_a_user_message_is_refused(
    open_site: Callable[..., Any], role: str
) -> None:
    async with open_site("x") as site:
        for path in (CHAT, REASON):
            param, text = await refused(site, path, messages=[{"role": role, "content": "x"}])
            assert param == "messages"
            assert "'user'" in text
