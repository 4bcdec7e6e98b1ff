"""Comparisons in real worker processes: the verdicts, the limits, and what is left of the processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import ray

from orchestrator.verifiers.math_pool import MathPool
from orchestrator.verifiers.math_process import MathLimits, MathVerdict

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
SAME, DIFFERENT = MathVerdict("same"), MathVerdict("different")
TOWER = "9^{9^{9^9}}"
SLOW = TOWER + "x"
PATHOLOGICAL = [
    TOWER, SLOW, r"(10^9)!", "(((9!)!)!)!", "x^{10^{10^{10}}}+1", r"\binom{10^9}{10^8}",
    r"\lfloor 10^{10^9}\rfloor", "(x+y+z)^{200}-(x+y)^{200}", r"\sin(10^{10^{10}})",
    r"\sqrt[3]{" * 15 + "2+x" + "}" * 15,
]  # fmt: skip
CASES = [
    ("0.333", "1/3", "different"),
    ("0.5", "1/2", "same"),
    (r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}", "same"),
    ("x^2-1", "(x-1)(x+1)", "same"),
    ("(1,2)", "(2,1)", "different"),
    ("{1,2}", "{2,1}", "same"),
    ("50%", r"50\%", "same"),
    ("50%", "1/2", "different"),
    ("5 km", "5", "different"),
    ("cat", "act", "error"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[MathPool]:
    made = MathPool(limits=MathLimits(limit_s=5))
    yield made
    await made.close()


def keeper(pool: MathPool) -> psutil.Process:
    pid = pool._processes[0].pid
    assert pid is not None
    return psutil.Process(pid)


async def until(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def calculating(pool: MathPool, text: str = SLOW) -> tuple[asyncio.Task[MathVerdict], psutil.Process]:
    """A comparison that takes all its time, and the process that makes it, once it is at it."""

    def cpu_times() -> dict[psutil.Process, float]:
        children = [] if pool._processes[0].pid is None else keeper(pool).children()
        return {p: p.cpu_times().user for p in children if not gone(p)}

    before = cpu_times()
    task = asyncio.create_task(pool.equal(text, "5y"))
    found: list[psutil.Process] = []

    def busy() -> bool:
        found[:] = [p for p, user in cpu_times().items() if user > before.get(p, 0.0) + 0.05]
        return bool(found)

    await until(busy)
    return task, found[0]


@pytest.mark.parametrize(("first", "second", "verdict"), CASES)
async def test_verdicts_are_exact_and_the_same_in_both_directions(
    pool: MathPool, first: str, second: str, verdict: str
) -> None:
    forth, back = await pool.equal(first, second), await pool.equal(second, first)
    assert forth == back
    assert forth.verdict == verdict
    assert bool(forth.reason) is (verdict == "error")


async def test_case_40_every_dash_is_a_minus_sign_and_the_sign_counts(pool: MathPool) -> None:
    assert await pool.equal("-3", "\u22123") == SAME
    assert await pool.equal("-3", "3") == DIFFERENT
    assert await pool.equal("-3x", "\u22123x") == SAME
    assert await pool.equal("-3x", "3x") == DIFFERENT


async def test_case_41_fraction_decimal_and_ratio_are_one_answer_and_the_last_box_counts(
    pool: MathPool,
) -> None:
    for first in (r"\boxed{\frac{1}{2}}", "0.5", "1/2", r"\boxed{3} or \boxed{\frac{1}{2}}"):
        assert await pool.equal(first, r"\frac12") == SAME
        assert await pool.equal(first, r"\boxed{2^{-1}}") == SAME
        assert await pool.equal(first, r"\boxed{2^{-1}} or \boxed{3}") == DIFFERENT


async def test_a_grade_takes_a_list_in_any_order_and_a_vote_does_not(pool: MathPool) -> None:
    assert await pool.grade("2, 1", "1, 2") == SAME
    assert (await pool.equal("2, 1", "1, 2")).verdict == "error"
    assert await pool.grade("x = 2", "2") == SAME


async def test_what_is_not_mathematics_is_an_error_with_a_reason_and_never_different(pool: MathPool) -> None:
    for other in ("Paris", "banana split", "1/2x", "", r"\foo{1}"):
        verdict = await pool.grade(other, "5")
        assert (verdict.verdict, bool(verdict.reason)) == ("error", True)


async def test_plain_numbers_and_equal_texts_need_no_process() -> None:
    pool = MathPool()
    assert await pool.equal("1,000", "1000.0") == SAME
    assert await pool.equal("0.3333333333", "1/3") == DIFFERENT
    assert await pool.equal("The cat.", "the cat") == SAME
    assert await pool.equal(f"{TOWER} and more", f"${TOWER} and more$") == SAME
    assert pool._processes[0].pid is None
    await pool.close()


async def test_the_longest_answers_fit_into_a_message_whatever_they_are_of() -> None:
    wide = MathPool(most_chars=2000)
    for character in ("x", "\U0001f600", "\ud800", "\0"):
        longest = await wide.equal(character * 1999 + "+", character * 1999 + "-")
        assert longest.verdict == "error"
        assert longest.reason.startswith("one of them has")
    await wide.close()


async def test_an_answer_too_long_is_refused_naming_the_bound() -> None:
    pool = MathPool(most_chars=10)
    assert await pool.equal("x" * 11, "x") == MathVerdict("error", "an answer is longer than 10 characters")
    await pool.close()


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("size", lambda: MathPool(size=0)),
        ("most_chars", lambda: MathPool(most_chars=2001)),
        ("most_waiting", lambda: MathPool(most_waiting=-1)),
        ("limit_s", lambda: MathLimits(limit_s=0)),
        ("memory_bytes", lambda: MathLimits(memory_bytes=1)),
        ("recycle_after", lambda: MathLimits(recycle_after=0)),
    ],
)
async def test_a_parameter_out_of_its_range_is_refused_by_name(field: str, build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be"):
        build()


async def test_case_46_the_verdict_is_the_same_from_a_loop_and_from_threads(pool: MathPool) -> None:
    loop = asyncio.get_running_loop()

    def in_this_loop_from_a_thread() -> list[str]:
        asked = [asyncio.run_coroutine_threadsafe(pool.equal(a, b), loop) for a, b, _ in CASES]
        return [future.result(50).verdict for future in asked]

    assert await asyncio.to_thread(in_this_loop_from_a_thread) == [v for *_, v in CASES]
    assert await asyncio.to_thread(lambda: asyncio.run(_verdicts())) == [v for *_, v in CASES]


async def _verdicts() -> list[str]:
    pool = MathPool(limits=MathLimits(limit_s=5))
    try:
        return [(await pool.equal(a, b)).verdict for a, b, _ in CASES]
    finally:
        await pool.close()


@pytest.mark.e2e
@pytest.mark.timeout(240)
async def test_case_46_the_verdict_is_the_same_from_a_ray_actor(local_ray: None) -> None:
    @ray.remote(num_cpus=0)
    class Grader:
        def in_a_thread(self) -> list[str]:
            return asyncio.run(_verdicts())

    @ray.remote(num_cpus=0)
    class AsyncGrader:
        async def in_its_loop(self) -> list[str]:
            return await _verdicts()

    def answers() -> list[list[str]]:
        plain, looped = Grader.remote(), AsyncGrader.remote()  # type: ignore[attr-defined]
        found: list[list[str]] = ray.get([plain.in_a_thread.remote(), looped.in_its_loop.remote()])
        return found

    assert await asyncio.to_thread(answers) == [[v for *_, v in CASES]] * 2


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    started = not ray.is_initialized()
    if started:
        # Workers find this module by its name, and the package in the checkout.
        paths = {"env_vars": {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'lib'}"}}
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    yield
    if started:
        ray.shutdown()


async def test_a_pool_refuses_a_second_event_loop(pool: MathPool) -> None:
    await pool.equal("x+1", "1+x")
    with pytest.raises(RuntimeError, match="one event loop"):
        await asyncio.to_thread(lambda: asyncio.run(pool.equal("x+1", "1+x")))


async def test_case_47_a_hundred_pathological_expressions_cost_their_time_and_no_capacity(
    pool: MathPool,
) -> None:
    await pool.equal("x+1", "1+x")  # so that the process is there
    before = keeper(pool)
    verdicts = []
    for i in range(100):
        text, other = PATHOLOGICAL[i % len(PATHOLOGICAL)], "5" if i % 3 else "5y"
        verdicts.append(await pool.equal(text, other, limit_s=0.05))
    assert {v.verdict for v in verdicts} <= {"timeout", "error"}
    assert all(v.reason for v in verdicts)
    assert sum(v.reason == "took longer than 0.05 s" for v in verdicts) >= 80
    assert pool._idle.qsize() == 1
    assert keeper(pool) == before
    assert len(before.children()) <= 1
    assert await pool.equal("x+1", "1+x") == SAME


async def test_a_calculation_that_is_killed_is_an_error_and_the_next_one_is_made(pool: MathPool) -> None:
    task, calculator = await calculating(pool)
    before = keeper(pool)
    calculator.kill()
    assert await task == MathVerdict("error", "the calculation ended by signal 9")
    assert await pool.equal("x+1", "1+x") == SAME
    assert keeper(pool) == before


async def test_a_calculator_that_dies_between_two_requests_is_replaced(pool: MathPool) -> None:
    await pool.equal("x+1", "1+x")
    idle = keeper(pool).children()[0]
    idle.kill()
    await until(lambda: gone(idle))
    assert await pool.equal("x+2", "2+x") == SAME


async def test_a_worker_that_is_killed_takes_its_calculation_with_it_and_is_replaced(pool: MathPool) -> None:
    task, calculator = await calculating(pool)
    before = keeper(pool)
    before.kill()
    assert (await task).verdict == "error"
    await until(lambda: gone(calculator))
    assert await pool.equal("x+1", "1+x") == SAME
    assert keeper(pool) != before


async def test_a_stopped_worker_is_given_up_and_replaced(pool: MathPool) -> None:
    await pool.equal("x+1", "1+x")
    before = keeper(pool)
    before.send_signal(signal.SIGSTOP)
    assert (await pool.equal("x+2", "2+x", limit_s=0.1)).verdict == "timeout"
    await until(lambda: gone(before))
    assert pool._idle.qsize() == 1
    assert await pool.equal("x+1", "1+x") == SAME


async def test_a_time_limit_that_means_nothing_is_refused(pool: MathPool) -> None:
    for limit_s in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="limit_s must be"):
            await pool.equal("x", "y", limit_s=limit_s)


async def test_a_caller_that_leaves_frees_the_process_at_once_and_shifts_no_answer(pool: MathPool) -> None:
    for _ in range(3):
        task, calculator = await calculating(pool)
        before = keeper(pool)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pool.equal("x+1", "2+x") == DIFFERENT
        assert keeper(pool) == before
        assert gone(calculator)
    assert await pool.equal("x+1", "1+x") == SAME
    assert pool._idle.qsize() == 1


async def test_a_caller_that_leaves_while_waiting_or_while_the_process_starts_costs_nothing() -> None:
    pool = MathPool(limits=MathLimits(limit_s=5))
    for delay in (0.0, 0.01, 0.1):
        tasks = [asyncio.create_task(pool.equal("x+1", f"{i}+x")) for i in range(5)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        assert await asyncio.gather(*tasks, return_exceptions=True)
    assert (pool._waiting, pool._idle.qsize()) == (0, 1)
    assert await pool.equal("x+1", "1+x") == SAME
    await pool.close()


async def test_a_timeout_of_the_caller_is_kept(pool: MathPool) -> None:
    await pool.equal("x+1", "1+x")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pool.equal(SLOW, "5y")
    assert time.monotonic() - began < 2
    assert await pool.equal("x+1", "1+x") == SAME


async def test_more_than_may_wait_is_refused_as_busy_and_the_others_are_served(
    pool: MathPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_most_waiting", 2)
    verdicts = await asyncio.gather(*(pool.equal("x+1", f"{i}+x") for i in range(5)))
    assert [v.verdict for v in verdicts] == ["different", "same", "different", "error", "error"]
    assert [v.reason for v in verdicts[3:]] == ["busy"] * 2


async def test_a_process_is_replaced_after_so_many_comparisons() -> None:
    pool = MathPool(limits=MathLimits(limit_s=5, recycle_after=2))
    used = []
    for i in range(6):
        assert (await pool.equal(f"x+{i + 1}", f"{i + 1}+x")) == SAME
        used.append(tuple(p.pid for p in keeper(pool).children()))
    # The second of each pair ends its process.
    assert len(set(used[::2])) == 3
    assert used[1::2] == [()] * 3
    await pool.close()


async def test_closing_ends_every_process_also_a_busy_one_and_refuses_what_comes_later() -> None:
    pool = MathPool(size=2, limits=MathLimits(limit_s=30))
    task, calculator = await calculating(pool)
    other = asyncio.create_task(pool.equal(SLOW, "6y"))
    await until(lambda: all(p.pid is not None for p in pool._processes))
    queued = asyncio.create_task(pool.equal(SLOW, "7y"))
    processes = [psutil.Process(p.pid) for p in pool._processes] + [calculator]
    await asyncio.sleep(0)
    await pool.close()
    assert [v.verdict for v in await asyncio.gather(task, other, queued)] == ["error"] * 3
    assert all(gone(process) for process in processes)
    assert await pool.equal("x+1", "1+x") == MathVerdict("error", "closed")
    assert [p.pid for p in pool._processes] == [None, None]


async def test_processes_never_outlive_whoever_started_them() -> None:
    script = textwrap.dedent(f"""
        import asyncio, psutil
        from orchestrator.verifiers.math_pool import MathPool
        async def main():
            pool = MathPool()
            await pool.equal("x+1", "1+x")
            task = asyncio.create_task(pool.equal({SLOW!r}, "5y"))
            await asyncio.sleep(0.2)
            print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert owner.stdout is not None
    line = await owner.stdout.readline()
    processes = [psutil.Process(int(pid)) for pid in line.split()]
    assert len(processes) == 2
    owner.kill()
    await owner.wait()
    await until(lambda: all(gone(process) for process in processes))


async def test_a_process_has_no_environment_no_network_and_bounded_memory(pool: MathPool) -> None:
    await pool.equal("x+1", "1+x")
    for process in (keeper(pool), keeper(pool).children()[0]):
        assert process.environ() == {}
    script = textwrap.dedent("""
        import os, socket, subprocess
        from orchestrator.verifiers.math_worker import _confine
        _confine(64 << 20)
        for forbidden in (
            lambda: socket.socket(), lambda: socket.getaddrinfo("localhost", 1), lambda: os.system("true"),
            lambda: subprocess.run(["true"]), lambda: os.fork(), lambda: os.execv("/bin/true", ["true"]),
        ):
            try:
                forbidden()
            except PermissionError:
                continue
            os._exit(3)
        try:
            bytearray(128 << 20)
        except MemoryError:
            os._exit(7)
    """)
    run = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], cwd=ROOT, check=False)
    assert run.returncode == 7


async def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.verifiers.math_process._RUN", "raise SystemExit(1)")
    pool = MathPool()
    assert await pool.equal("x+1", "1+x") == MathVerdict("error", "the worker process could not be started")
    assert pool._idle.qsize() == 1
    await pool.close()
