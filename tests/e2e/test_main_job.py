"""The main job on the real engine: `make run`'s default server, both models."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from search.log import EventLog, replay
from support.collector import Collector, attributes
from support.live import Live

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

QUERY = "Compute (47+38)*3-29."


def reason(server: Live, key: str | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny-reasoner", "query": QUERY, **fields}
    with server.client(key) as client:
        response = client.post("/v1/reason", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_effort_high_gives_the_right_number_and_a_receipt_that_adds_up(server: Live) -> None:
    answer = reason(server, effort="high", seed=3)
    assert (answer["answer"], answer["status"]) == ("226", "completed")
    assert answer["text"].endswith("Answer: 226")
    receipt = answer["receipt"]
    tokens = receipt["tokens"]
    assert tokens["charged"] == tokens["prompt"] + tokens["generated"] + tokens["verifier"] <= receipt["cap"]
    assert sum(b["tokens"] for b in receipt["branches"]) == tokens["generated"]
    assert sum(receipt["fates"].values()) == 16
    assert all(0 <= b["score"] <= 1 for b in receipt["branches"] if b["fate"] in ("chosen", "agreed"))
    assert receipt["calls"]["generate"] == 16
    assert 1 <= receipt["calls"]["verifier"] <= 16, "samples of the same tokens share a score"
    assert receipt["calls"]["failed"] == 0
    assert receipt["fixed_n_tokens"]


def test_siblings_reuse_the_prompt(server: Live) -> None:
    tokens = reason(server, technique="best_of_n", params={"n": 16})["receipt"]["tokens"]
    assert tokens["sibling_cached"] / (tokens["sibling_cached"] + tokens["sibling_fresh"]) >= 0.9


@pytest.mark.parametrize("effort", ["auto", "low", "medium", "max"])
def test_every_effort_answers(server: Live, effort: str) -> None:
    answer = reason(server, effort=effort, query="Compute 40+44.", seed=1)
    assert (answer["answer"], answer["status"]) == ("84", "completed")


def test_the_same_seed_gives_the_same_text_at_low_load(server: Live) -> None:
    once, again = (
        reason(server, technique="single", sampling={"temperature": 0.9}, seed=17) for _ in range(2)
    )
    other = [
        reason(server, technique="single", sampling={"temperature": 1.5}, seed=s)["text"]
        for s in range(18, 24)
    ]
    assert once["text"] == again["text"]
    assert len(set(other)) > 1


def test_a_real_run_replays_from_its_log(server: Live) -> None:
    answer = reason(server, technique="self_consistency", include_log=True)
    log = EventLog.from_lines(answer["log"].splitlines())
    best = replay(log).best()
    assert best is not None
    assert best.answer == answer["answer"]
    assert "\n".join(log.to_lines()) + "\n" == answer["log"]


@pytest.mark.parametrize("cap", [60, 150, 400])
def test_case_9_the_hard_cap_holds_on_the_real_engine(server: Live, cap: int) -> None:
    answer = reason(server, effort="high", max_total_tokens=cap)
    assert answer["receipt"]["tokens"]["charged"] <= cap
    assert answer["status"] in ("partial", "completed")


def test_a_deadline_gives_what_there_is_by_then(server: Live) -> None:
    body = {
        "model": "smollm2-135m-instruct",
        "query": "Write a long story about a lighthouse.",
        "technique": "self_consistency",
        "params": {"n": 4, "stop": "none"},
        "max_new_tokens": 1000,
        "deadline_ms": 4000,
    }
    with server.client() as client:
        answer = client.post("/v1/reason", json=body).json()
    assert (answer["status"], answer["answer"]) == ("partial", None)
    assert answer["receipt"]["stop_reason"] == "deadline"
    assert answer["text"].strip()
    assert answer["receipt"]["elapsed_ms"] < 9000


def test_the_official_client_streams_a_free_answer(server: Live) -> None:
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key or "", http_client=http) as client:
        stream = client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            stream=True,
            stream_options={"include_usage": True},
            reasoning_effort="low",
            max_completion_tokens=60,
        )
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert "Paris" in text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens > 0
        assert {m.id for m in client.models.list()} == {"tiny-reasoner", "smollm2-135m-instruct"}


def test_json_schema_stop_and_limits_are_honoured_by_the_engine(server: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    body: dict[str, Any] = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "Name a city as JSON."}],
        "reasoning_effort": "low",
        "max_completion_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    }
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
        assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"city"}
        stopped = client.post(
            "/v1/chat/completions",
            json={"model": "tiny-reasoner", "messages": [{"role": "user", "content": QUERY}], "stop": "255-"}
            | {"reasoning_effort": "low"},
        ).json()
    assert stopped["choices"][0]["message"]["content"] == "47+38=85\n85*3=255\n"
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_case_63_a_tenant_finds_nothing_of_another_in_the_cache(server: Live, fresh_key: str) -> None:
    query = "Compute 123+17-45+3."
    first = reason(server, effort="low", query=query)["receipt"]["tokens"]
    again = reason(server, effort="low", query=query)["receipt"]["tokens"]
    stranger = reason(server, fresh_key, effort="low", query=query)["receipt"]["tokens"]
    assert again["prefill_cached"] == first["prompt"] - 1
    assert stranger["prefill_cached"] == 0


def test_a_system_message_is_refused_where_the_template_would_drop_it(server: Live) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUERY}]
    with server.client() as client:
        response = client.post("/v1/chat/completions", json={"model": "tiny-reasoner", "messages": messages})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_case_1_twenty_at_once_against_a_budget_for_three(server: Live) -> None:
    cap = 2000
    key = server.pondera("tenants", "add", "three", "--day", str(3 * cap))
    body = {"model": "tiny-reasoner", "query": "Compute 81*3+44-7*5.", "max_total_tokens": cap}
    body |= {"technique": "best_of_n", "params": {"n": 32}}
    with server.client(key) as client, ThreadPoolExecutor(20) as pool:
        client.get("/v1/models")
        responses = list(pool.map(lambda _: client.post("/v1/reason", json=body), range(20)))
    admitted = [r.json() for r in responses if r.status_code == 200]
    refused = [r for r in responses if r.status_code != 200]
    assert len(admitted) == 3
    assert {r.status_code for r in refused} == {429}
    assert {r.json()["error"]["code"] for r in refused} == {"budget_exceeded"}
    assert all(int(r.headers["retry-after"]) >= 1 for r in refused)
    charged = sum(a["receipt"]["tokens"]["charged"] for a in admitted)
    assert charged <= 3 * cap
    line = next(x for x in server.pondera("tenants", "list").splitlines() if x.startswith("three "))
    assert f"day {charged}+0/{3 * cap}" in line


def test_every_call_is_a_span_of_the_clients_trace(server: Live, collector: Collector) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with server.client() as client:
        client.post(
            "/v1/reason",
            json={"model": "tiny-reasoner", "query": QUERY, "technique": "best_of_n", "params": {"n": 4}},
            headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
        )
    spans = collector.wait_for(lambda ss: any(s.parent_span_id.hex() == "00f067aa0ba902b7" for s in ss))
    mine = [s for s in spans if s.trace_id.hex() == trace]
    root = next(s for s in mine if s.parent_span_id.hex() == "00f067aa0ba902b7")
    calls = [s for s in mine if s is not root]
    names = [s.name for s in calls]
    assert names.count("generate tiny-reasoner") == 4
    assert 1 <= names.count("score tiny-reasoner") == len(calls) - 4 <= 4
    assert {s.parent_span_id for s in calls} == {root.span_id}
    for call in calls:
        a = attributes(call)
        assert a["pondera.tokens.cached"] + a["pondera.tokens.fresh"] == a["gen_ai.usage.input_tokens"]
    assert attributes(root)["pondera.tokens.charged"] > 0
    assert QUERY not in str(mine)


def test_the_command_line_asks_and_prints_the_receipt(server: Live) -> None:
    out = server.pondera(
        "ask",
        QUERY,
        "--effort",
        "high",
        "--seed",
        "3",
        "--base-url",
        server.url,
        PONDERA_API_KEY=server.key or "",
    )
    assert "answer 226" in out
    assert "charged" in out


def test_no_key_is_in_the_servers_output_but_the_first(server: Live, fresh_key: str) -> None:
    reason(server, fresh_key, effort="low")
    text = server.output.read_text()
    assert fresh_key not in text
    assert text.count(server.key or "-") == 2
    for path in (server.state / "valkey").iterdir():
        if path.is_file():
            assert (server.key or "-").split("_")[-1].encode() not in path.read_bytes()


def test_the_model_files_are_where_prepare_puts_them(server: Live) -> None:
    out = server.pondera("models", "prepare", "tiny-reasoner")
    assert Path(out.split(": ")[1], "model.safetensors").exists()
