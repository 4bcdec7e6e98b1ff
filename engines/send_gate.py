"""Lets requests that were submitted together reach SGLang's scheduler together.

Each is prepared in turn, which takes about a millisecond. An idle scheduler starts on the first one that
arrives and lets the rest wait for a whole step of the model; when they arrive in one go, one step does for
all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LONGEST_S = 0.02
"""How long a request waits at most for the others, some of which may never come."""


class SendGate:
    """Holds back what is sent until as much has come as was announced.

    Args:
        encode: what is sent, as bytes; called at once, since the sender changes it afterwards.
        send: sends bytes; must keep their order.
    """

    def __init__(self, encode: Callable[[Any], bytes], send: Callable[[bytes], Any]) -> None:
        self._encode = encode
        self._send = send
        self._held: list[bytes] = []
        self._expected = 0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, count: int) -> None:
        """Announce that so many requests are about to be sent."""
        self._expected += count

    def dispatch(self, what: Any, *, request: bool) -> None:
        """Send something. What is no request (an abort, say) goes at once, after what was held back."""
        self._held.append(self._encode(what))
        if request:
            self._expected -= 1
        if not request or self._expected <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self._give_up)

    def _give_up(self) -> None:
        self._expected = 0
        self._flush()

    def _flush(self) -> None:
        self._expected = max(0, self._expected)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for data in held:
            self._send(data)
