"""Runs the tests against the answer on the other side and says what came of it."""

from __future__ import annotations

import ast
import builtins
import json
import sys
import types

from .peer import Gone, Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE = "/code/tests.py"
_COUNTER = "__assert_is_reached__"


def main() -> None:
    """Run `/code/tests.py` and write one line: the token that comes as standard input, and the verdict.

    The answer never gets the token, so a line that starts with it is no text of the answer's that the tests
    printed.
    """
    token = sys.stdin.readline().strip()
    read, write = map(int, sys.argv[1:3])
    sys.argv[1:] = []
    with open(_FILE, "rb") as source:  # noqa: PTH123
        kind, reason = _judge(source.read(), read, write)
    sys.stdout.write(f"\n{token}{json.dumps([kind, reason[:1000]])}\n")
    sys.stdout.flush()


def _judge(source: bytes, read: int, write: int) -> tuple[str, str]:
    try:
        tree = ast.parse(source, _FILE)
        used = _names_used(tree)
        asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
        code = compile(ast.fix_missing_locations(_Counting().visit(tree)), _FILE, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        return "error", f"the tests cannot be read: {type(exc).__name__}: {exc}"
    if not asserts:
        return "error", "the tests have no assert statement"
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    peer = Peer(open(read, "rb"), open(write, "wb"), strict=True, own_module="tests")  # noqa: SIM115
    try:
        match peer.receive():
            case ["names", list(names)]:
                values = {str(name): peer.decode(form[0]) for name, form in names}
            case ["failed", str(why)]:
                return "wrong", f"the code fails: {why}"
            case _:
                return "wrong", "the code broke the line to the tests"
    except (Gone, Exception) as exc:
        return "wrong", f"the code did not get to the tests: {exc}"
    hidden = sorted(used & set(values) & set(dir(builtins)))
    if hidden:
        return "wrong", f"the code redefines built-in names that the tests use: {', '.join(hidden)}"
    reached = [0]
    for name, value in values.items():
        if not name.startswith("__") and not hasattr(builtins, name):
            setattr(module, name, value)
    vars(module).update({"__file__": _FILE, _COUNTER: lambda: reached.__setitem__(0, reached[0] + 1)})
    try:
        exec(code, vars(module))  # noqa: S102
    except Gone as exc:
        return "wrong", f"the code ended before the tests: {exc}"
    except SystemExit:
        return "error", "the tests exited before their end"
    except AssertionError as exc:
        return "wrong", f"an assert fails in line {_line(exc)} of the tests: {exc}".removesuffix(": ")
    except Exception as exc:
        return "wrong", f"line {_line(exc)} of the tests raises {type(exc).__name__}: {exc}"
    if peer.broken:
        return "wrong", f"the code ended before the tests: {peer.broken}"
    if not reached[0]:
        return "wrong", "none of the asserts was reached"
    return "right", f"{reached[0]} asserts hold"


class _Counting(ast.NodeTransformer):
    """Puts a call before each assert, by which one sees that asserts were reached at all."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        """See `ast.NodeTransformer`."""
        call = ast.Expr(ast.Call(ast.Name(_COUNTER, ast.Load()), [], []))
        return [ast.copy_location(call, node), node]


def _names_used(tree: ast.AST) -> set[str]:
    """Names that the tests read and do not bind themselves."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
    return read - bound


def _line(exc: BaseException) -> int:
    """The line of the tests in which something was raised; 0 when it was in none."""
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            return trace.tb_lineno
        trace = trace.tb_next
    return 0
