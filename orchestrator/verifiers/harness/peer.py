"""One end of the line between the two sides: requests go out and are answered, in both directions.

A message is a 4-byte length and JSON. Both sides are served by one thread each, so that a request that comes
while a reply is awaited belongs to what is being asked, and is answered first.
"""

from __future__ import annotations

import json
import struct
from collections import deque

from .remote import COMPARISONS, OPERATIONS, Remote, number_of
from .values import BrokenProtocol, Codec, Exited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO, NoReturn

MAX_MESSAGE = 8 << 20
"""Bytes of one message."""

_MUTABLE = (list, dict, set, bytearray, deque)
# What the other side may do to any value that it was handed, and to instances of the tests' own classes.
_HARMLESS = {
    "call", "iter", "next", "len", "getitem", "contains", "bool", "hash", "str", "repr", "int", "float",
    "index", "isinstance", *COMPARISONS,
}  # fmt: skip
_OF_INSTANCES = {"getattr", "setattr", "setitem", "delitem", "enter", "exit"}


class Gone(BaseException):
    """The other side has ended or makes no sense. No Exception: tests must not take it for the answer's."""


class Peer:
    """This side's end of the line.

    Args:
        reader: what the other side writes.
        writer: what it reads.
        strict: this side does not trust the other one: see `Remote`, and what it may do to this side's
            values is limited. Instances of classes of module `own_module` are open to it, but for names that
            start with an underscore.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, *, strict: bool, own_module: str = "") -> None:
        self.strict = strict
        self.broken = ""
        """Why the line is of no use any more; empty while it is."""
        self._reader = reader
        self._writer = writer
        self._own_module = own_module
        self._codec = Codec(self)
        self._exports: list[object] = []
        self._numbers: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}

    # References

    def export(self, value: object) -> int:
        """See `References`. The value is kept, so that its number never means another one."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._exports)
            self._exports.append(value)
        return self._numbers[id(value)]

    def exported(self, number: int) -> object:
        """See `References`."""
        if not 0 <= number < len(self._exports):
            raise BrokenProtocol("a number that was never given")
        return self._exports[number]

    def remote(self, number: int) -> Remote:
        """See `References`. The same value always has the same stand-in."""
        if number not in self._remotes:
            self._remotes[number] = Remote(self, number)
        return self._remotes[number]

    def number_of(self, value: object) -> int | None:
        """See `References`."""
        return number_of(value) if type(value) is Remote else None

    async def awaitable(self, number: int) -> Any:
        """See `References`. The other side runs its coroutine to the end."""
        return self.request("await", self.remote(number))

    def encode(self, value: object) -> Any:
        """The form of a value; see `Codec`."""
        return self._codec.encode(value)

    def decode(self, form: Any) -> Any:
        """The value of a form; see `Codec`."""
        return self._codec.decode(form)

    # The line

    def send(self, *message: Any) -> None:
        """Send a message whose parts are forms.

        Raises:
            Gone: there is nobody to read it.
        """
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"a value has more than {MAX_MESSAGE} bytes")
        try:
            self._writer.write(struct.pack(">I", len(data)) + data)
            self._writer.flush()
        except OSError as exc:
            self._lose(f"it cannot be reached: {exc}")

    def receive(self) -> list[Any]:
        """The next message.

        Raises:
            Gone: there is none any more, or it makes no sense.
        """
        if self.broken:
            self._lose(self.broken)
        head = self._reader.read(4)
        size = struct.unpack(">I", head)[0] if len(head) == 4 else 0
        if not 0 < size <= MAX_MESSAGE:
            self._lose("it has ended" if not head else "its message has a wrong length")
        data = self._reader.read(size)
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, list) or not message:
            self._lose("its message makes no sense")
        return list(message)

    def request(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Have the other side do something, and wait for what comes of it.

        Containers among the arguments are changed as the other side changed its copies of them.

        Raises:
            Gone: the other side is.
            Exception: what it raised.
        """
        names = list(kwargs)
        everything = [*args, *kwargs.values()]
        self.send("?", operation, names, [self._codec.encode(value) for value in everything])
        message = next(self._messages())
        try:
            match message:
                case ["!", form, list(changed)]:
                    for at, new in changed:
                        restore(everything[at], self._codec.decode(new))
                    return self._codec.decode(form)
                case ["~", kind, list(arguments), str(text)]:
                    raised = self._raised(
                        self._codec.decode(kind), self._codec.decode(["t", arguments]), text
                    )
                case _:
                    raise BrokenProtocol("neither a request nor a reply")
        except (BrokenProtocol, TypeError, ValueError, LookupError) as exc:
            self._lose(f"its reply makes no sense: {exc}")
        raise raised

    def serve(self) -> None:
        """Answer requests until the other side ends."""
        try:
            next(self._messages())
        except Gone:
            return

    def _messages(self) -> Iterator[list[Any]]:
        """Messages that are no requests; those are answered."""
        while True:
            message = self.receive()
            match message:
                case ["?", str(operation), list(names), list(forms)]:
                    self._answer(operation, names, forms)
                case _:
                    yield message

    def _answer(self, operation: str, names: list[Any], forms: list[Any]) -> None:
        try:
            values = [self._codec.decode(form) for form in forms]
            split = len(values) - len(names)
            args, kwargs = values[:split], dict(zip(map(str, names), values[split:], strict=True))
            if not args:
                raise BrokenProtocol("no target")
        except (BrokenProtocol, ValueError) as exc:
            self._lose(f"its request makes no sense: {exc}")
        try:
            result = self._codec.encode(self._perform(operation, args, kwargs))
            changed = [
                [at, form]
                for at, value in enumerate(values)
                if isinstance(value, _MUTABLE) and (form := self._codec.encode(value)) != forms[at]
            ]
            self.send("!", result, changed)
        except BaseException as exc:
            if isinstance(exc, Gone) or (self.strict and not isinstance(exc, Exception)):
                raise
            arguments = [
                self._codec.encode(a if isinstance(a, (str, int, float)) else str(a)) for a in exc.args
            ]
            self.send("~", self._codec.encode(type(exc)), arguments, f"{type(exc).__name__}: {exc}"[:2000])

    def _perform(self, operation: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.strict and not self._allowed(operation, args):
            raise TypeError(f"{operation} is not open to the answer")
        if operation == "await":
            import asyncio

            return asyncio.run(args[0])
        if operation not in OPERATIONS:
            raise TypeError(f"{operation} is unknown")
        return OPERATIONS[operation](*args, **kwargs)

    def _allowed(self, operation: str, args: list[Any]) -> bool:
        if operation in _HARMLESS:
            return True
        # A function or a generator would lead to its frame, and so to everything.
        own = type(args[0]).__module__ == self._own_module
        named = operation in ("getattr", "setattr")
        return operation in _OF_INSTANCES and own and not (named and str(args[1]).startswith("_"))

    def _raised(self, kind: Any, args: tuple[object, ...], text: str) -> Exception:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise BrokenProtocol("no exception")
        if kind is Exited:
            return Exited(text)
        try:
            return kind(*args)
        except Exception:
            # Its constructor takes something else than the arguments that it keeps.
            return kind.__new__(kind, *args)

    def _lose(self, why: str) -> NoReturn:
        self.broken = why
        raise Gone(why)


def restore(old: Any, new: Any) -> Any:
    """Make a container hold what its changed copy holds; containers in it stay the same objects."""
    if type(old) is not type(new):
        return new
    if isinstance(old, (list, deque)):
        kept = [restore(a, b) for a, b in zip(old, new, strict=False)]
        kept += list(new)[len(kept) :]
        old.clear()
        old.extend(kept)
    elif isinstance(old, dict):
        items = {key: restore(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(items)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, tuple) and len(old) == len(new):
        return tuple(restore(a, b) for a, b in zip(old, new, strict=True))
    else:
        return new
    return old
