"""Code is judged by what it does, whatever it does to be judged otherwise."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guards.sandbox import Sandbox, SandboxFailed, SandboxLimits
from orchestrator.verifiers.code import CodeTests, CodeVerdict, CodeVerifier, IOCase
from search.extract import ThinkingMarkers

LIMITS = SandboxLimits(wall_s=8.0, cpu_s=4)
SQUARE = CodeTests(asserts="assert square(3) == 9\nassert square(-2) == 4\n")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(concurrency=2, limits=LIMITS)
    asyncio.run(sandbox.probe())
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.fixture(scope="module")
def verifier(sandbox: Sandbox) -> CodeVerifier:
    return CodeVerifier(sandbox, thinking=ThinkingMarkers())


def fenced(code: str) -> str:
    return f"<think>hm</think>So:\n```python\n{code}\n```\n"


async def judge(verifier: CodeVerifier, code: str, asserts: str) -> CodeVerdict:
    return await verifier.check(fenced(code), CodeTests(asserts=asserts))


async def test_right_code_is_right(verifier: CodeVerifier) -> None:
    verdict = await verifier.check(fenced("def square(x): return x * x"), SQUARE)
    assert (verdict.kind, verdict.reason, verdict.runs) == ("right", "2 asserts hold", 2)
    assert verdict.verdict.kind == "right" and 0 < verdict.cpu_s < 4


async def test_wrong_code_is_wrong_and_the_line_is_told(verifier: CodeVerifier) -> None:
    verdict = await verifier.check(fenced("def square(x): return x * 3"), SQUARE)
    assert (verdict.kind, verdict.reason) == ("wrong", "an assert fails in line 2 of the tests")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def square(x) return x", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def cube(x): return x ** 3", "NameError"),
        ("def square(x): return [][x]", "IndexError"),
        ("import numpy", "ModuleNotFoundError"),
        ("square = 9", "TypeError"),
    ],
)
async def test_code_that_fails_is_wrong_and_says_how(verifier: CodeVerifier, code: str, reason: str) -> None:
    verdict = await verifier.check(fenced(code), SQUARE)
    assert verdict.kind == "wrong" and reason in verdict.reason


async def test_a_missing_code_block_is_wrong(verifier: CodeVerifier) -> None:
    verdict = await verifier.check("<think>\n```python\ndef square(x): return x * x\n```\n</think>9", SQUARE)
    assert (verdict.kind, verdict.reason, verdict.runs) == ("wrong", "no code", 0)


FAKES = {
    "exit": "import sys\nsys.exit(0)",
    "raise SystemExit": "raise SystemExit(0)",
    "_exit": "import os\nos._exit(0)",
    "exit when asked": "import os\ndef square(x): os._exit(0)",
    "SystemExit when asked": "def square(x): raise SystemExit(0)",
    "exit later": "import atexit, os\natexit.register(os._exit, 0)",
    "success marker": """
import os
print('["right", "2 asserts hold"]', flush=True)
os._exit(0)""",
    "equal to all": """
class E:
    __hash__ = None
    def __eq__(self, other): return True
    def __ne__(self, other): return False
def square(x): return E()""",
    "a number equal to all": """
class E(int):
    def __eq__(self, other): return True
def square(x): return E(1)""",
    "built-ins": """
import builtins
builtins.AssertionError = type("A", (Warning,), {})
builtins.__build_class__ = builtins.isinstance = None
builtins.all = lambda x: True
def square(x): return 1""",
    "frames": """
import sys
def square(x):
    f = sys._getframe()
    while f:
        f.f_globals.update(kind="right")
        f = f.f_back
    return 0""",
    "collector": """
import gc
def square(x):
    for o in gc.get_objects():
        if isinstance(o, list) and o and o[0] == "wrong": o[0] = "right"
    return 0""",
    "tracing": """
import sys
sys.settrace(lambda *a: None)
sys.excepthook = lambda *a: None
def square(x): return 0""",
    "reads files": """
import os
print([open(os.path.join(d, f), "rb").read() for d, _, fs in os.walk("/code") for f in fs])
def square(x): return 0""",
    "own protocol": """
import json, os, struct
for fd in range(3, 64):
    try:
        for m in (["names", []], ["!", True, []], ["verdict", "right"]):
            d = json.dumps(m).encode()
            os.write(fd, struct.pack(">I", len(d)) + d)
    except OSError: pass
os._exit(0)""",
    "garbage": """
import os
for fd in range(3, 64):
    try: os.write(fd, b"\\xff" * 1000)
    except OSError: pass
os._exit(0)""",
    "names of the harness": """
__assert_is_reached__ = __builtins__ = __name__ = None
def square(x): return 1""",
    "closed line": "import os\nos.closerange(3, 64)\ndef square(x): return 9",
}


@pytest.mark.parametrize("code", FAKES.values(), ids=FAKES.keys())
async def test_a_pass_cannot_be_faked(verifier: CodeVerifier, code: str) -> None:
    verdict = await verifier.check(fenced(code), SQUARE)
    assert verdict.kind == "wrong", verdict


NEAR = "import math\nassert abs(half(1) - 0.5) < 1e-9\nassert math.isclose(half(3), 1.5)\n"


@pytest.mark.parametrize(
    "code",
    [
        "class E:\n    def __sub__(s, o): return 0.0\ndef half(x): return E()",
        "class E:\n    __sub__ = lambda s, o: s\n    __abs__ = lambda s: 0.0\ndef half(x): return E()",
        "def abs(x): return 0\nclass math: isclose = lambda *a: True\ndef half(x): return 1.0",
    ],
)
async def test_operators_do_not_tell_the_code_what_is_expected(verifier: CodeVerifier, code: str) -> None:
    assert (await judge(verifier, code, NEAR)).kind == "wrong"
    assert (await judge(verifier, "def half(x): return x / 2", NEAR)).kind == "right"


async def test_membership_and_order_are_decided_by_the_tests(verifier: CodeVerifier) -> None:
    code = "class E:\n    def __contains__(s, x): return True\n    def __iter__(s): return iter([1])\n"
    code += "    def __lt__(s, x): return True\ndef f(): return E()"
    assert (await judge(verifier, code, "assert 7 in f()")).kind == "wrong"
    assert (await judge(verifier, code, "assert 1 in f()")).kind == "right"
    assert (await judge(verifier, code, "assert f() < 3")).kind == "wrong"


async def test_a_built_in_that_the_code_redefines_is_not_taken_for_its_own(verifier: CodeVerifier) -> None:
    verdict = await judge(verifier, "def sum(xs): return 7", "assert sum([3, 4]) == 7")
    assert verdict.kind == "wrong" and "built-in" in verdict.reason
    assert (
        await judge(verifier, "def sum(xs): return 7\ndef f(): return 1", "assert f() == 1")
    ).kind == "right"


async def test_tests_that_are_swallowed_or_skipped_do_not_pass(verifier: CodeVerifier) -> None:
    verdict = await judge(verifier, "def f(): return []", "for x in f():\n    assert x == 1")
    assert (verdict.kind, verdict.reason) == ("wrong", "none of the asserts was reached")
    swallow = "try:\n    f()\nexcept Exception:\n    pass\nassert 1 == 1"
    assert (await judge(verifier, "import os\ndef f(): os._exit(0)", swallow)).kind == "wrong"
    bare = swallow.replace(" Exception", "")
    assert (await judge(verifier, "import os\ndef f(): os._exit(0)", bare)).kind == "wrong"


async def test_tests_that_cannot_judge_are_an_error_and_not_the_code_s_fault(verifier: CodeVerifier) -> None:
    code = "def f(): return 1"
    for asserts, reason in (
        ("assert f( == 1", "cannot be read"),
        ("f()", "no assert"),
        ("assert f() == 1\nraise SystemExit", "exited"),
        ("import os\nassert f() == 1\nos._exit(0)", "no verdict"),
    ):
        verdict = await judge(verifier, code, asserts)
        assert verdict.kind == "error" and reason in verdict.reason, verdict


async def test_reaching_a_limit_is_wrong_and_the_limit_is_named(verifier: CodeVerifier) -> None:
    short = SandboxLimits(wall_s=1.5, cpu_s=10)
    tests = CodeTests(asserts="assert f() == 1")
    for code, reason in (
        ("import time\ntime.sleep(60)", "timeout"),
        ("import time\ndef f(): time.sleep(60)", "timeout"),
        ("def f():\n    while True: pass", "timeout"),
        ("def f():\n    while True: print('x' * 100_000)", "output_limit"),
    ):
        verdict = await verifier.check(fenced(code), tests, short if reason == "timeout" else None)
        assert (verdict.kind, verdict.reason) == ("wrong", reason)
    verdict = await verifier.check(fenced("def f(): return bytearray(1 << 40)"), tests)
    assert verdict.kind == "wrong" and "MemoryError" in verdict.reason
    verdict = await verifier.check(
        fenced("def f():\n    while True: pass"), tests, SandboxLimits(cpu_s=1, wall_s=8)
    )
    assert (verdict.kind, verdict.reason) == ("wrong", "cpu_limit")


async def test_a_value_that_is_too_large_for_the_tests_is_wrong(verifier: CodeVerifier) -> None:
    code = "def f(): return 'x' * (1 << 26)\ndef g():\n    x = []\n    x.append(x)\n    return x"
    assert (await judge(verifier, code, "assert f() == 1")).kind == "wrong"
    assert (await judge(verifier, code, "assert g() == 1")).kind == "wrong"


async def test_plain_data_crosses_as_it_is(verifier: CodeVerifier) -> None:
    code = "def same(x): return x\ndef kind(x): return type(x).__name__"
    values = """
import collections, datetime, decimal, fractions, math
P = collections.namedtuple("P", "x y")
zone = datetime.timezone(datetime.timedelta(hours=2))
for x in (
    None, True, 0, -1, 2**70, -(10**5000), 1.5, float("inf"), 1j, "", "\\ud800 \\0 ä", b"\\xff\\0",
    bytearray(b"x"), [], [[1], (2,)], (), {1: {2: 3}}, {(1, 2): None}, {1, 2}, frozenset([3]), range(1, 9, 2),
    fractions.Fraction(1, 3), decimal.Decimal("1.10"), datetime.date(2020, 2, 29),
    datetime.timedelta(1, 2, 3),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6, zone), datetime.time(1, 2), collections.deque([1, 2], 3),
    collections.Counter("aab"), collections.OrderedDict(a=1), P(1, 2), int, len, ValueError, math,
):
    assert same(x) == x, x
    assert type(same(x)).__name__ == type(x).__name__ == kind(x), x
assert math.isnan(same(float("nan")))
assert same(collections.defaultdict(list, a=[1])) == {"a": [1]}
assert same(True) is True and same(None) is None
assert same(P(1, 2)).y == 2
"""
    verdict = await judge(verifier, code, values)
    assert verdict.kind == "right", verdict


async def test_arguments_that_are_changed_in_place_are_changed(verifier: CodeVerifier) -> None:
    code = """
def sort(xs): xs.sort()
def grow(d, *, s): d["new"] = [1]; d["old"].append(2); s.add(3); del d["gone"]
def rotate(grid): grid[0], grid[1] = grid[1], grid[0]
"""
    asserts = """
xs = [3, 1, 2]
assert sort(xs) is None and xs == [1, 2, 3]
inner = [1]
d, s = {"old": inner, "gone": 0}, set()
grow(d, s=s)
assert d == {"old": [1, 2], "new": [1]} and s == {3} and inner == [1, 2]
grid = [[1, 2], [3, 4]]
rotate(grid)
assert grid == [[3, 4], [1, 2]]
"""
    verdict = await judge(verifier, code, asserts)
    assert verdict.kind == "right", verdict


async def test_classes_iterators_and_exceptions_of_the_code_can_be_tested(verifier: CodeVerifier) -> None:
    code = """
import asyncio, enum, functools, json
from dataclasses import dataclass
class Empty(LookupError): pass
class Stack:
    limit = 3
    def __init__(self, *items): self.items = list(items)
    def push(self, x): self.items.append(x); return self
    def pop(self):
        if not self.items: raise Empty("nothing", 7)
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
    def __repr__(self): return "Stack"
    def __enter__(self): return self
    def __exit__(self, *a): self.items.clear()
class Sub(Stack): pass
@dataclass(frozen=True)
class V:
    x: int
    def __add__(self, o): return V(self.x + o.x)
    def __lt__(self, o): return self.x < o.x
class Color(enum.Enum):
    RED = 1
def count(n):
    while n: yield n; n -= 1
def apply(f, *xs, **kw): return [f(x, **kw) for x in xs]
def adder(n): return lambda x: x + n
async def later(x):
    await asyncio.sleep(0)
    return x
class Node:
    def __init__(self, val, next=None): self.val, self.next = val, next
def total(node):
    n = 0
    while node is not None: n += node.val; node = node.next
    return n
def parse(s): return json.loads(s)
@functools.lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
"""
    asserts = """
import asyncio, json
s = Stack(1)
assert s.push(2) is s and len(s) == 2 and list(s) == [1, 2] and s[0] == 1 and s.items == [1, 2]
assert s.pop() == 2 and repr(s) == "Stack" and isinstance(s, Stack) and Stack.limit == 3 and 1 in s
assert isinstance(Sub(), Stack) and issubclass(Sub, Stack)
assert not isinstance(s, Sub) and not isinstance(3, Stack)
assert not isinstance(s, int) and bool(s) and not Stack()
s.limit = 5
assert s.limit == 5 and hasattr(s, "push") and not hasattr(s, "nothing")
try:
    Stack().pop()
    assert False
except Empty as e:
    assert e.args == ("nothing", 7)
try:
    Stack().pop()
    assert False
except LookupError:
    pass
with Stack(1) as t:
    assert len(t) == 1
assert len(t) == 0
assert V(1) + V(2) == V(3) != V(4) and V(1) < V(2)
assert sorted([V(2), V(1)])[0].x == 1 and len({V(1), V(1)}) == 1
assert Color.RED is Color.RED and Color.RED.value == 1 and Color(1) == Color.RED
assert list(count(3)) == [3, 2, 1] and next(count(5)) == 5 and sum(count(3)) == 6
assert apply(lambda x, k=0: x + k, 1, 2, k=10) == [11, 12] and apply(len, "ab") == [2]
assert adder(2)(3) == 5 and asyncio.run(later(4)) == 4
assert total(Node(1, Node(2))) == 3
class Mine:
    def __init__(self, val, next=None): self.val, self.next = val, next
assert total(Mine(1, Mine(5))) == 6
try:
    parse("{")
    assert False
except json.JSONDecodeError:
    pass
assert fib(50) == 12586269025
def check(candidate):
    assert candidate("[1]") == [1]
check(parse)
"""
    verdict = await judge(verifier, code, asserts)
    assert verdict.kind == "right", verdict


async def test_what_the_tests_hand_over_does_not_lead_to_the_tests(verifier: CodeVerifier) -> None:
    asserts = """
secret = "s3cret"
class Box:
    def __init__(self): self.x = 1; self._y = 2
def gen(): yield 1
for thing, names in (
    (lambda: 0, ("__globals__", "__code__", "__closure__")),
    (gen(), ("gi_frame", "gi_code")),
    (Box(), ("__class__", "__dict__", "_y")),
    (Box, ("__init__", "mro")),
):
    for name in names:
        assert reach(thing, name) == "no", name
assert reach(Box(), "x") == 1
"""
    code = """
import sys
def reach(thing, name):
    from harness.remote import request
    try: return request(thing, "getattr", name)
    except Exception: return "no"
"""
    verdict = await judge(verifier, code, asserts)
    assert verdict.kind == "right", verdict


CASES = CodeTests(cases=(IOCase("1 2\n", "3\n"), IOCase("-1 1", "0")))


async def test_a_program_is_judged_by_its_output(verifier: CodeVerifier) -> None:
    verdict = await verifier.check(fenced("print(sum(map(int, input().split())))"), CASES)
    assert (verdict.kind, verdict.reason, verdict.runs) == ("right", "2 cases pass", 2)
    main = "def main(): print(sum(map(int, input().split())), ' ')\nif __name__ == '__main__': main()"
    assert (await verifier.check(fenced(main), CASES)).kind == "right"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print(3)", "case 2: the output differs"),
        ("print(0)", "case 1: the output differs"),
        ("", "no code"),
        ("import sys\nsys.exit(0)", "case 1: the output differs"),
        ("print(3)\nraise ValueError('x')", "case 1: exit status 1: ValueError: x"),
        ("while True: pass", "case 1: cpu_limit"),
    ],
)
async def test_a_program_that_fails_a_case_is_wrong(verifier: CodeVerifier, code: str, reason: str) -> None:
    verdict = await verifier.check(fenced(code), CASES, SandboxLimits(cpu_s=1))
    assert (verdict.kind, verdict.reason) == ("wrong", reason)


async def test_case_53_code_with_a_system_call_has_no_effect_on_the_host(
    verifier: CodeVerifier, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]
        code = f"""
import os, socket, subprocess
def f():
    tried = []
    for action in (
        lambda: os.system("touch {tmp_path}/x"),
        lambda: subprocess.run(["/bin/sh", "-c", "touch {tmp_path}/x"]),
        lambda: open("{tmp_path}/x", "w"),
        lambda: socket.create_connection(("127.0.0.1", {port}), timeout=1),
        lambda: os.kill({os.getpid()}, 9),
    ):
        try: tried.append(action())
        except OSError as e: tried.append("no")
    return tried
"""
        verdict = await judge(verifier, code, "got = f()\nassert got[0] != 0 and got[1:] == ['no'] * 4, got")
        assert verdict.kind == "right", verdict
        assert os.listdir(tmp_path) == []  # noqa: PTH208
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_without_isolation_the_verdict_is_an_error_and_never_wrong() -> None:
    sandbox = Sandbox()
    verdict = await CodeVerifier(sandbox).check(fenced("def square(x): return 0"), SQUARE)
    assert verdict.kind == "error" and "not probed" in verdict.reason
    assert (await CodeVerifier(sandbox).check(fenced("print(1)"), CASES)).kind == "error"
    await sandbox.close()


async def test_a_sandbox_that_fails_is_an_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise SandboxFailed("no")

    monkeypatch.setattr(sandbox, "run_linked", fail)
    verdict = await CodeVerifier(sandbox).check(fenced("def square(x): return x * x"), SQUARE)
    assert (verdict.kind, verdict.reason) == ("error", "the sandbox failed: no")


async def test_code_that_is_too_long_is_wrong(verifier: CodeVerifier) -> None:
    code = "x = 1\n" * 800_000
    assert (await verifier.check(fenced(code), SQUARE)).reason == "the code is too long"
    assert (await verifier.check(fenced(code), CASES)).reason == "the code is too long"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: CodeTests(), "either"),
        (lambda: CodeTests(asserts="assert 1", cases=(IOCase("", ""),)), "either"),
        (lambda: CodeTests(asserts=" \n"), "either"),
        (lambda: CodeTests(cases=(IOCase("", ""),) * 257), "cases"),
        (lambda: CodeTests(asserts="#" * (1 << 21)), "characters"),
    ],
)
def test_tests_that_are_none_are_refused(make: object, match: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=match):
        make()
