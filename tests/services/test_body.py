"""What a body may be, and that nothing in one is a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import QueryError
from services.api.body import MOST_LEVELS, parse
from services.api.encoding import encode, escaped, scrubbed
from support.site import Site

CHAT = "/v1/chat/completions"
REASON = "/v1/reason"
JSON = {"content-type": "application/json"}
LONE = "\ud800"


async def post(site: Site, path: str, body: object) -> tuple[int, dict[str, Any]]:
    """Send a body as ASCII JSON, which can spell what no UTF-8 can; bytes go as they are."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await site.client.post(path, content=raw, headers=JSON)
    error = json.loads(response.content.decode("utf-8", "strict")).get("error")
    assert error is None or set(error) == {"message", "type", "param", "code"}
    return response.status_code, error


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": f"a{LONE}"}]}, "messages.0.content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": LONE}]}]},
            "messages.0.content.0.text",
        ),
        (CHAT, {"messages": [{"role": LONE, "content": "x"}]}, "messages.0.role"),
        (CHAT, {"model": LONE}, "model"),
        (CHAT, {"stop": ["a", LONE]}, "stop.1"),
        (CHAT, {"stop": LONE}, "stop"),
        (CHAT, {"logit_bias": {LONE: 1}}, r"logit_bias.\ud800"),
        (CHAT, {LONE: 1}, r"\ud800"),
        (CHAT, {"pondera": {"technique": LONE}}, "pondera.technique"),
        (CHAT, {"pondera": {"technique": "single", "params": {"n": LONE}}}, "pondera.params.n"),
        (REASON, {"query": LONE}, "query"),
        (REASON, {"technique": "single", "params": {LONE: 1}}, r"params.\ud800"),
        (REASON, {"technique": "single", "params": {"a": [{"b": LONE}]}}, "params.a.0.b"),
        (REASON, {"sampling": {"regex": LONE}}, "sampling.regex"),
        (REASON, {"sampling": {"json_schema": {"title": LONE}}}, "sampling.json_schema.title"),
    ],
)
async def test_a_lone_surrogate_anywhere_is_a_400_that_names_the_field(
    open_site: Callable[..., Any], path: str, fields: dict[str, Any], param: str
) -> None:
    async with open_site("Answer: 7") as site:
        start: dict[str, Any] = {"model": "toy"}
        start |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"query": "hi"}
        status, error = await post(site, path, start | fields)
        assert (status, error["param"], error["code"]) == (400, param, "invalid_json")
        assert "surrogate" in error["message"]
        assert not site.engine.requests


@pytest.mark.parametrize(
    "text", ["\0", "\ufffe\uffff", "\U0010ffff", "e\u0301", "\u202e\u2066", "👩‍👩‍👧", "\x1b[31m"]
)
async def test_odd_but_whole_unicode_is_answered_or_refused_and_never_a_500(
    open_site: Callable[..., Any], text: str
) -> None:
    async with open_site("Answer: 7") as site:
        for fields in ({"query": text}, {"query": "hi", "sampling": {"stop": [text]}}):
            assert (await post(site, REASON, {"model": "toy"} | fields))[0] == 200
        assert (await post(site, REASON, {"model": text, "query": "hi"}))[0] == 404
        for fields in ({"technique": text}, {"technique": "single", "params": {text: text}}, {text: text}):
            assert (await post(site, REASON, {"model": "toy", "query": "hi"} | fields))[0] == 400
        assert (await site.client.get(f"/v1/models/{text!r}")).status_code == 404
        for encoded in ("%ED%A0%80", "%FF", "%00", "%0A"):
            assert (await site.client.get(f"/v1/models/{encoded}")).status_code == 404


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"model": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"model": "\xff"}', "UTF-8"),
        ('{"model": "toy"}'.encode("utf-16"), "UTF-8"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": Infinity}', "Infinity"),
        (b'{"pondera": {"params": {"x": [-Infinity]}}}', "-Infinity"),
        (b'{"temperature": 1e999}', "too large"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"model": "a", "model": "b"}', "'model' twice"),
        (b'{"pondera": {"effort": "low", "effort": "max"}}', "'effort' twice"),
        (b'{"a\\ud800": 1, "a\\ud800": 2}', "twice"),
        (b"[" * 100_000, "deeply"),
        (b'{"messages":' * 10_000, "deeply"),
        (b"", "JSON"),
        (b'{"model": ', "JSON"),
        (b"[]", "dictionary"),
        (b"null", ""),
    ],
)
async def test_what_is_no_plain_json_is_a_400(open_site: Callable[..., Any], raw: bytes, says: str) -> None:
    async with open_site("x") as site:
        status, error = await post(site, CHAT, raw)
        assert status == 400
        assert says in error["message"]
        assert (await post(site, REASON, raw))[0] == 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"max_tokens": 10**300}),
        (CHAT, {"temperature": 10**300}),
        (CHAT, {"seed": 10**300}),
        (CHAT, {"pondera": {"top_k": 10**300}}),
        (CHAT, {"pondera": {"deadline_ms": 10**300}}),
        (CHAT, {"pondera": {"technique": "best_of_n", "params": {"n": 10**300}}}),
    ],
)
async def test_a_huge_number_is_a_400(open_site: Callable[..., Any], path: str, fields: Any) -> None:
    async with open_site("x") as site:
        body = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
        assert (await post(site, path, body | fields))[0] == 400


async def test_another_media_type_is_a_415_that_says_what_to_send(open_site: Callable[..., Any]) -> None:
    async with open_site("x") as site:
        response = await site.client.post(REASON, content=b"{}", headers={"content-type": "text/plain"})
        assert response.status_code == 415
        assert "application/json" in response.json()["error"]["message"]
        typed = {"content-type": "application/json; charset=utf-8"}
        body = b'{"model": "toy", "query": "hi"}'
        assert (await site.client.post(REASON, content=body, headers=typed)).status_code == 200


def test_levels_are_counted_outside_of_strings_alone() -> None:
    nested: Any = "["
    for _ in range(MOST_LEVELS):
        nested = [nested]
    assert parse(json.dumps(nested).encode()) == nested
    assert parse(json.dumps({"a": '["\\' * 500}).encode()) == {"a": '["\\' * 500}
    with pytest.raises(QueryError, match="deeply"):
        parse(json.dumps([nested]).encode())


def test_many_unclosed_strings_are_refused_in_one_pass() -> None:
    with pytest.raises(QueryError):
        parse(b"[" * (MOST_LEVELS + 1) + b'"' + b'\\"' * 500_000)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


def test_answers_can_always_be_encoded() -> None:
    assert json.loads(encode({"a\ud800": ["\udfff", 1.5, None]})) == {"a\ufffd": ["\ufffd", 1.5, None]}
    assert escaped("a\ud800é") == "a\\ud800é"
    assert scrubbed({"é": ("x",)}) == {"é": ["x"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_models_broken_text_is_still_an_answer(open_site: Callable[..., Any], stream: bool) -> None:
    async with open_site("a\ud800b\nAnswer: 7") as site:
        body = {
            "model": "toy",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": stream,
            "reasoning_effort": "low",
        }
        response = await site.client.post(CHAT, json=body)
        assert response.status_code == 200
        text = response.content.decode("utf-8", "strict")
        assert "\ufffd" in text
        native = await site.client.post(REASON, json={"model": "toy", "query": "hi", "include_log": True})
        assert native.status_code == 200
        assert native.json()["text"] == "a\ufffdb\nAnswer: 7"
