"""The listening socket of a server."""

from __future__ import annotations

import socket


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket, for a server that will listen on it.

    Args:
        port: 0 picks a free one.

    Raises:
        OSError: the address cannot be had; the message names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches off Nagle's algorithm on the connections; without it, each
    # answer waits some 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        shown = f"[{host}]" if ":" in host else host
        raise OSError(f"cannot listen on {shown}:{port}: {e.strerror}") from None
    return listener
