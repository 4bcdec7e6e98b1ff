"""A send gate between SGLang's tokenizer manager and its scheduler."""

from __future__ import annotations

import pickle
from typing import Any

from engines.send_gate import SendGate


class _Wire:
    """Stands in for a socket, to learn what SGLang would send on it."""

    def __init__(self) -> None:
        self.data = b""

    def send(self, data: bytes, flags: int = 0) -> None:
        self.data = data

    def send_pyobj(self, what: Any, flags: int = 0, protocol: int = pickle.DEFAULT_PROTOCOL) -> None:
        self.data = pickle.dumps(what, protocol)


def install_gate(manager: Any) -> SendGate:
    """Put a gate in front of all that the manager sends to its scheduler."""
    from sglang.srt.managers.io_struct import (
        TokenizedEmbeddingReqInput,
        TokenizedGenerateReqInput,
        sock_send,
    )

    def encode(what: Any) -> bytes:
        wire = _Wire()
        sock_send(wire, what)
        return wire.data

    gate = SendGate(encode, manager.send_to_scheduler.send)

    def dispatch(what: Any) -> None:
        request = isinstance(what, TokenizedGenerateReqInput | TokenizedEmbeddingReqInput)
        gate.dispatch(what, request=request)

    manager._dispatch_to_scheduler = dispatch
    return gate
