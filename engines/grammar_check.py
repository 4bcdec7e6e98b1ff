"""Refuse grammars that do not compile, or cost too much, before they reach the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from engines.protocol import EngineError, EngineRefused

_WORKER = Path(__file__).with_name("grammar_worker.py")
_START_S = 60.0
_MOST_WAITING = 64
_MOST_REMEMBERED = 256


class GrammarCheck:
    """Tries each grammar out once, in a process of its own that is started by the first one.

    Args:
        model_dir: the folder with `tokenizer.json`.
        stop_token_ids: the model's ends of turn.
        cpu_s: processor time that a grammar may take to compile and to be walked for some hundred tokens.
        wall_s: the same on the clock, for a machine that is busy with other things.
    """

    def __init__(
        self, model_dir: str, stop_token_ids: Sequence[int], cpu_s: float = 3.0, wall_s: float = 15.0
    ) -> None:
        self._arguments = [model_dir, str(cpu_s), *map(str, stop_token_ids)]
        self._wall_s = wall_s
        self._process: Process | None = None
        self._known: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closed = False

    async def check(self, field: str, text: str) -> None:
        """Return if the engine can be given this grammar.

        Args:
            field: `regex` or `json_schema`.
            text: the grammar; its length is the caller's to bound.

        Raises:
            EngineRefused: it cannot.
            EngineError: it could not be checked.
        """
        if (field, text) not in self._known and self._waiting >= _MOST_WAITING:
            raise EngineError("too many grammars wait to be compiled")
        self._waiting += 1
        try:
            async with self._turn:
                refusal = await self._ask(field, text)
        finally:
            self._waiting -= 1
        if refusal is not None:
            raise EngineRefused(f"{field} {refusal}", field)

    async def close(self) -> None:
        self._closed = True
        await self._kill()

    async def _ask(self, field: str, text: str) -> str | None:
        key = (field, text)
        if key not in self._known:
            self._known[key] = await self._try_out(field, text)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    async def _try_out(self, field: str, text: str) -> str | None:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(self._wall_s):
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(json.dumps({"field": field, "text": text}).encode() + b"\n")
                    await process.stdin.drain()
                answer = await process.stdout.readline()
                if not answer and await process.wait() != -signal.SIGPROF:
                    return "cannot be compiled"
        except TimeoutError:
            pass
        finally:
            if not answer:  # also when the caller was cancelled: the late answer would be the next one's
                await self._kill()
        if not answer:
            return "takes too long to compile or to follow"
        refusal: str | None = json.loads(answer)["refusal"]
        return refusal

    async def _started(self) -> Process:
        if self._process is None and not self._closed:
            # -P: the modules beside the script must not hide those of libraries.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(_WORKER), *self._arguments, stdin=PIPE, stdout=PIPE
            )
            ready = b""
            with contextlib.suppress(TimeoutError):
                try:
                    async with asyncio.timeout(_START_S):
                        assert self._process.stdout is not None
                        ready = await self._process.stdout.readline()
                finally:
                    if not ready:
                        await self._kill()
        if self._process is None:
            raise EngineError("grammars cannot be compiled now")
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
