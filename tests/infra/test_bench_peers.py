"""The pure parts of the comparison with peers: counting, pairing, turns, the majority by hand."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import infra
from engines.tokenizer import ModelTokenizer
from infra.bench import results, stats
from infra.bench.peers import wire
from infra.bench.peers.__main__ import conclude
from infra.bench.peers.counting import Counters, Tokens, receipted, spent
from infra.bench.peers.driver import Ran
from infra.bench.peers.run import Book, seed_of, verdict
from infra.bench.peers.schedule import per_level, turns
from infra.bench.peers.server import template
from infra.bench.peers.sides import FULL, OURS, PEERS, QUICK, SIDES, N, Side, Size, sides
from infra.bench.peers.summary import Record, Verdict, better_peer, result, versus
from infra.bench.peers.vote import is_right, key_of, majority
from infra.bench.problems import Problem, held_out
from infra.bench.stats import compare, mcnemar, wilson
from infra.bench.venvs import REQUIREMENTS

MODEL = Path(infra.__file__).parent / "models" / "tiny_reasoner" / "model"


def record(side: str, right: list[bool], wall: float = 10.0, work: int = 100, **more: Any) -> Record:
    made = Record(Side(side, more.get("system", "its_hub"), "http", "vote", core=more.get("core", True)), 16)
    made.verdicts = [Verdict(f"L1-{i:03d}", 1, r, True, False, 1.0) for i, r in enumerate(right)]
    made.walls = [(len(right), wall)]
    made.tokens = Tokens(generated=work)
    return made


# The majority by hand.


def test_the_most_frequent_answer_wins_whatever_its_spelling() -> None:
    texts = ["Answer: 7", "1+1=2\nAnswer: 3", "Answer: 3.0", "Answer: 8"]
    assert majority(texts) == "1+1=2\nAnswer: 3"


def test_of_equal_votes_the_answer_that_came_first_wins() -> None:
    assert majority(["Answer: 5", "Answer: 6", "Answer: 6", "Answer: 5"]) == "Answer: 5"


def test_a_text_without_an_answer_has_no_vote() -> None:
    silent = "12+30=42\n42-2=40\n40*2="
    assert majority([silent, silent, "Answer: 9"]) == "Answer: 9"
    assert majority([silent, ""]) is None
    assert majority([]) is None


def test_a_text_is_judged_by_its_final_answer() -> None:
    assert is_right("40+2=42\nAnswer: 42", 42)
    assert not is_right("40+2=42\nAnswer: 24", 42)
    assert not is_right(None, 42)
    assert key_of("") is None


# Counting.


def test_scores_are_the_verifiers_and_each_token_is_counted_once() -> None:
    before = Counters(generated=100, prompt=1000, cached=400, requests=10)
    # Ten generations of 50 tokens after prompts of 20, and four scores of 30 tokens with one label each.
    after = Counters(
        generated=100 + 500 + 4, prompt=1000 + 200 + 120, cached=400 + 150 + 100, requests=10 + 14
    )
    tokens = spent(before, after, scores=4)
    assert tokens == Tokens(generated=500, verifier=8, fresh=66, cached=250, requests=14)
    assert tokens.work == 508
    prefilled_and_decoded = (320 - 250) + 504
    assert tokens.fresh + tokens.work == prefilled_and_decoded


def test_our_receipts_are_counted_by_the_same_rule() -> None:
    receipt = {
        "tokens": {"generated": 250, "verifier": 4, "prefill_fresh": 35, "prefill_cached": 125},
        "calls": {"generate": 5, "verifier": 2, "failed": 0},
    }
    once = Tokens(generated=250, verifier=4, fresh=33, cached=125, requests=7)
    assert receipted([receipt]) == once
    assert receipted([receipt, receipt]) == once + once
    assert receipted([]) == Tokens()


# Pairing.


def test_mcnemar_is_the_binomial_tail_of_the_discordant_pairs() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(6, 0) == pytest.approx(2 / 2**6)
    assert mcnemar(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)
    assert mcnemar(7, 1) == mcnemar(1, 7)


def test_the_bootstrap_interval_is_that_of_the_mean_of_paired_differences() -> None:
    ours, theirs = [True] * 60 + [False] * 40, [True] * 50 + [False] * 50
    paired = compare(ours, theirs, seed=1)
    assert (paired.won, paired.lost, paired.difference) == (10, 0, 0.1)
    error = math.sqrt(0.1 * 0.9 / 100)
    assert paired.low == pytest.approx(0.1 - 1.96 * error, abs=0.02)
    assert paired.high == pytest.approx(0.1 + 1.96 * error, abs=0.02)
    assert paired == compare(ours, theirs, seed=1)


def test_shares_of_several_runs_are_paired_by_problem() -> None:
    paired = compare([0.5] * 50 + [0.0] * 50, [0.0] * 100, seed=1)
    assert (paired.won, paired.lost, paired.difference) == (50, 0, 0.25)
    error = 0.25 / math.sqrt(100)
    assert paired.low == pytest.approx(0.25 - 1.96 * error, abs=0.01)
    assert paired.high == pytest.approx(0.25 + 1.96 * error, abs=0.01)


def test_sides_that_agree_everywhere_differ_by_nothing() -> None:
    paired = compare([True, False, True], [True, False, True], seed=0)
    assert (paired.difference, paired.low, paired.high, paired.p) == (0.0, 0.0, 0.0, 1.0)


def test_verdicts_of_different_length_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="paired"):
        compare([True], [True, False], seed=0)
    with pytest.raises(ValueError, match="paired"):
        compare([], [], seed=0)


def test_wilsons_interval_stays_within_0_and_1() -> None:
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    low, high = wilson(50, 100)
    assert [low, high] == pytest.approx([0.404, 0.596], abs=1e-3)


# Summaries.


def test_the_better_peer_is_the_most_accurate_and_of_equals_the_fastest() -> None:
    slow = record("slow", [True, True, False], wall=20)
    fast = record("fast", [True, False, True], wall=9)
    wrong = record("wrong", [True, False, False], wall=1)
    assert better_peer([slow, fast, wrong]) is fast


def test_neither_the_bare_engine_nor_a_side_with_fewer_problems_is_the_better_peer() -> None:
    peer = record("peer", [True, False])
    bare = record("bare", [True, True], system="engine")
    small = record("small", [True, True], core=False)
    assert better_peer([bare, small, peer]) is peer
    with pytest.raises(ValueError, match="empty"):
        better_peer([bare, small])


def test_the_result_compares_shared_problems_per_problem() -> None:
    ours = record("ours", [True, True, False, True], wall=8.0, work=400)
    theirs = record("theirs", [True, False], wall=10.0, work=500)
    found = versus(ours, theirs, seed=0)
    assert found.paired.problems == 2
    assert result(found) == {
        "speedup": pytest.approx((10.0 / 2) / (8.0 / 4)),
        "acc_gap": 0.5,
        "token_ratio": pytest.approx((400 / 4) / (500 / 2)),
    }
    assert list(found.speedups) == pytest.approx([2.5])


def test_an_error_is_wrong_and_failed() -> None:
    problem = Problem("L2-061", 2, "Compute 1+1+1.", 3)
    base = {"id": problem.id, "seconds": 0.5, "extra": {}}
    right = verdict(problem, {**base, "text": "1+1=2\n2+1=3\nAnswer: 3", "error": None})
    assert (right.right, right.answered, right.failed) == (True, True, False)
    broken = verdict(problem, {**base, "text": None, "error": "TimeoutError: "})
    assert (broken.right, broken.answered, broken.failed) == (False, False, True)
    gave_up = verdict(problem, {**base, "text": "", "error": None, "extra": {"status": "failed"}})
    assert gave_up.failed


# Turns.


def test_every_other_block_has_the_sides_in_reverse() -> None:
    a, b = (Side(name, "engine", "http", "x", core=True) for name in "ab")
    made = list(turns((a, b), held_out(60, 2), {16: Size(blocks=2, core=5, other=2)}))
    assert [(t.block, t.side.name, len(t.problems)) for t in made] == [
        (0, "a", 5),
        (0, "b", 5),
        (1, "b", 5),
        (1, "a", 5),
    ]


def test_a_side_that_is_not_core_has_its_turn_in_the_first_block_alone() -> None:
    side = Side("b", "pondera", "http", "x")
    made = list(turns((side,), held_out(60, 4), {1: Size(blocks=4, core=5, other=3)}))
    assert [(t.block, len(t.problems)) for t in made] == [(0, 3)]


@pytest.mark.parametrize("sizes", [FULL, QUICK])
def test_all_core_sides_get_the_same_untouched_problems_and_each_once(sizes: dict[int, Size]) -> None:
    problems = held_out(60, per_level(sizes, 5))
    by_side: dict[tuple[int, str], list[str]] = {}
    for turn in turns(SIDES, problems, sizes):
        by_side.setdefault((turn.concurrency, turn.side.name), []).extend(p.id for p in turn.problems)
    for concurrency, size in sizes.items():
        core = {side.name: by_side[concurrency, side.name] for side in SIDES if side.core}
        reference = core[OURS]
        assert len(reference) == len(set(reference)) == size.blocks * size.core
        assert all(ids == reference for ids in core.values())
        others = [by_side[concurrency, side.name] for side in SIDES if not side.core]
        assert all(set(ids) <= set(reference) for ids in others)


def test_more_problems_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 5"):
        list(turns(SIDES, held_out(60, 1), {1: Size(blocks=2, core=3, other=1)}))


def test_each_problem_and_concurrency_has_a_seed_of_its_own() -> None:
    problems = held_out(60, 140)
    seeds = {seed_of(p, concurrency) for p in problems for concurrency in (1, 16)}
    assert len(seeds) == 2 * len(problems)
    assert all(0 <= seed < 2**53 for seed in seeds)


# The table of sides.


def test_names_are_unique_and_both_peers_stand_among_the_core_sides() -> None:
    names = [side.name for side in SIDES]
    assert len(set(names)) == len(names)
    core = {side.system for side in SIDES if side.core}
    assert core >= PEERS | {"engine", "pondera"}
    ours = next(side for side in SIDES if side.name == OURS)
    assert ours.core
    assert ours.params["n"] == N


def test_our_tree_techniques_run_only_where_the_registry_has_them() -> None:
    assert sides(frozenset()) == SIDES
    assert [s.name for s in sides(frozenset({"mcts", "single"}))[len(SIDES) :]] == ["pondera mcts"]


def test_every_line_of_the_peers_requirements_is_pinned() -> None:
    files = sorted(REQUIREMENTS.glob("*.txt"))
    assert [f.stem for f in files] == ["its_hub", "optillm", "reasoning_gym", "sglang_http", "treequest"]
    for file in files:
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert lines
        assert all("==" in line for line in lines), file.name


# The prompt that the model sees.


def test_the_peers_template_differs_from_the_models_in_optillms_prefix_alone() -> None:
    changed = ModelTokenizer(MODEL)
    changed._template = changed._template.environment.from_string(template(MODEL))
    own = ModelTokenizer(MODEL)
    plain = [{"role": "system", "content": ""}, {"role": "user", "content": "Compute 9*5."}]
    prefixed = [{"role": "user", "content": "User: Compute 9*5."}]
    assert changed.render_chat(plain) == own.render_chat(plain)
    assert changed.render_chat(prefixed) == own.render_chat(plain)
    assert own.render_chat(prefixed) != own.render_chat(plain)


def test_a_template_of_another_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ValueError, match="exactly once"):
        template(tmp_path)


def test_a_driver_answers_every_problem_and_turns_exceptions_into_failures() -> None:
    @contextlib.asynccontextmanager
    async def opened(_turn: wire.Turn) -> AsyncIterator[wire.Session]:
        async def answer(problem: wire.Problem) -> wire.Answer:
            if problem["id"] == "b":
                raise RuntimeError("no")
            return wire.Answer("Answer: 1", {"k": 1})

        session = wire.Session(answer)
        yield session
        session.scores = 3

    out = io.StringIO()
    turn = {"concurrency": 2, "problems": [{"id": i} for i in "abc"]}
    asyncio.run(wire._run(turn, opened, out))
    *replies, done = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {r["id"]: r["error"] for r in replies} == {"a": None, "b": "RuntimeError: no", "c": None}
    assert done["done"]
    assert done["scores"] == 3
    assert done["wall"] >= 0


# The whole report.


def test_the_report_ends_with_the_result_line_against_the_better_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(stats, "RESAMPLES", 100)
    everyone = sides(frozenset({"mcts", "beam"}))
    problems = held_out(60, per_level(QUICK, 5))
    with (tmp_path / "replies.jsonl").open("w") as file:
        book = Book(file)
        for turn in turns(everyone, problems, QUICK):
            wall = 2.0 if turn.side.name == OURS else 6.0
            right = turn.side.name in (OURS, "optillm majority_voting")
            replies: list[dict[str, Any]] = [
                {
                    "id": p.id,
                    "text": f"Answer: {p.answer if right else -1}",
                    "error": None,
                    "seconds": 1.0,
                    "extra": {},
                }
                for p in turn.problems
            ]
            tokens = Tokens(generated=50 if turn.side.name == OURS else 100)
            book.add(turn, Ran(tuple(replies), wall, 0), tokens)
    conclude(book, everyone, {"all": 0.01}, Console(width=160), tmp_path / "replies.jsonl")
    printed = capsys.readouterr().out
    assert "RESULT compares pondera vote with optillm majority_voting" in printed
    assert printed.splitlines()[-1] == "RESULT bench-peers speedup=3 acc_gap=0 token_ratio=0.5"
    rows = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"problem", "turn"}
    kept = json.loads(next(tmp_path.glob("bench-peers-*.json")).read_text())
    assert kept["values"]["speedup"] == pytest.approx(3.0)
    assert len(kept["rows"]) == len(everyone) * len(QUICK)
