"""Every technique on the real engine, through the REST API of `make run`'s default server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from search.log import EventLog, replay
from search.registry import TECHNIQUES
from support.live import Live

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

QUERY, ANSWER = "Compute 40+44.", "84"
SMALL_TREE = {"width": 2, "expand": 3}

REQUESTS: dict[str, dict[str, Any]] = {
    "single": {},
    "self_consistency": {"n": 8},
    "best_of_n": {"n": 6},
    "deepconf": {"n": 8, "warmup": 4},
    "beam": SMALL_TREE,
    "dvts": {"subtrees": 2, "expand": 3},
    "rebase": {"n": 6, "likelihood": 1.0},
    "mcts": {"expansions": 16},
    "particle": {"particles": 4},
    "refine": {"rounds": 1},
    "cascade": {
        "stages": [
            {"technique": "self_consistency", "params": {"n": 3, "width": 3}},
            {"technique": "beam", "params": SMALL_TREE},
        ]
    },
}


def ask(server: Live, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny-reasoner", "query": QUERY, "seed": 3, **fields}
    with server.client() as client:
        response = client.post("/v1/reason", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_answers_on_the_real_engine_with_a_receipt_that_adds_up(server: Live, name: str) -> None:
    answer = ask(server, technique=name, params=REQUESTS[name], include_log=True)
    assert answer["status"] == "completed"
    if name != "refine":  # the tiny model knows no second turn
        assert answer["answer"] == ANSWER
    tokens = answer["receipt"]["tokens"]
    assert tokens["charged"] == tokens["prompt"] + tokens["generated"] + tokens["verifier"]
    listed = sum(b["tokens"] for b in answer["receipt"]["branches"])
    assert listed + tokens["after_stop"] == tokens["generated"]
    search = replay(EventLog.from_lines(answer["log"].splitlines()))
    best = search.best()
    assert best is not None
    assert search.tree.path_text(best.node, best.begin) == answer["text"]


def test_a_childs_prefix_is_found_in_the_cache(server: Live) -> None:
    tokens = ask(server, technique="beam", params={"width": 4, "expand": 4}, query="Compute 12+13*4-20+7.")[
        "receipt"
    ]["tokens"]
    assert tokens["sibling_cached"] / (tokens["sibling_cached"] + tokens["sibling_fresh"]) >= 0.9


@pytest.mark.parametrize(
    ("verifier", "params"),
    [
        ({"kind": "exact", "expected": ANSWER}, {"n": 16, "by": "check", "score_batch": 1}),
        ({"kind": "math", "expected": "2*42"}, {"n": 16, "by": "check", "score_batch": 1}),
        ({"kind": "regex", "pattern": "8[0-9]"}, {"n": 16, "by": "check", "score_batch": 1}),
        ({"kind": "process_reward"}, {"n": 4}),
    ],
)
def test_a_verifier_that_the_client_names_judges(
    server: Live, verifier: dict[str, Any], params: dict[str, Any]
) -> None:
    answer = ask(server, technique="best_of_n", params=params, verifiers=[verifier])
    assert answer["answer"] == ANSWER
    assert answer["receipt"]["calls"]["verifier"] >= 1
    if verifier["kind"] != "process_reward":
        assert answer["receipt"]["stop_reason"] == "verified"


@pytest.mark.parametrize("by", ["score", "compare"])
def test_a_language_model_judges_answers_alone_and_in_pairs(server: Live, by: str) -> None:
    answer = ask(
        server,
        model="smollm2-135m-instruct",
        query="Name a colour. One word.",
        technique="best_of_n",
        params={"n": 8, "by": by},
        verifiers=[{"kind": "judge"}],
        sampling={"regex": "(red|blue|green|yellow|black|white)", "temperature": 1.5},
        max_new_tokens=16,
    )
    assert answer["status"] == "completed"
    tokens = answer["receipt"]["tokens"]
    assert tokens["verifier"] > 50, "the judge's own prompt is paid for"
    assert answer["receipt"]["calls"]["failed"] == 0


def test_case_53_code_is_off_until_an_operator_allows_it_and_then_runs_apart(
    server: Live, fresh_key: str
) -> None:
    body = {
        "model": "smollm2-135m-instruct",
        "query": "Write a Python function add(a, b) that returns a + b. Reply with a code block.",
        "technique": "best_of_n",
        "params": {"n": 2, "by": "check"},
        "verifiers": [{"kind": "code", "asserts": "assert add(2, 3) == 5"}],
        "max_new_tokens": 96,
        "seed": 1,
    }
    with server.client(fresh_key) as client:
        refused = client.post("/v1/reason", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "code_not_allowed")
        words = server.pondera("tenants", "list").split()
        tenant = next(word for word in words if word.startswith("t-"))
        server.pondera("tenants", "allow-code", tenant, "on")
        allowed = client.post("/v1/reason", json=body)
    assert allowed.status_code == 200, allowed.text
    assert allowed.json()["receipt"]["calls"]["verifier"] >= 1
    assert allowed.json()["receipt"]["failures"] == []


def test_structured_output_keeps_to_its_schema_through_every_technique(server: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    for technique, params in (("self_consistency", {"n": 3}), ("beam", SMALL_TREE)):
        answer = ask(
            server,
            technique=technique,
            params=params,
            sampling={"json_schema": schema},
            max_new_tokens=40,
        )
        assert json.loads(answer["answer"])["colour"] in ("red", "blue")
        assert answer["status"] == "completed"
