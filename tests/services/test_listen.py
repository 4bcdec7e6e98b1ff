from __future__ import annotations

import asyncio
import socket

from services.listen import bind


async def test_connections_of_the_listener_send_small_answers_at_once() -> None:
    """Without TCP_NODELAY an answer in two writes waits for the client's delayed acknowledgement."""
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        seen.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await asyncio.wait_for(seen, 5)
            writer.close()
