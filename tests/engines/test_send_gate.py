from __future__ import annotations

import asyncio

from engines.send_gate import LONGEST_S, SendGate


def gate_into(sent: list[bytes]) -> SendGate:
    return SendGate(lambda what: str(what).encode(), sent.append)


async def test_what_was_announced_goes_out_together_and_in_order() -> None:
    sent: list[bytes] = []
    gate = gate_into(sent)
    gate.expect(3)
    gate.dispatch(1, request=True)
    gate.dispatch(2, request=True)
    assert sent == []
    gate.dispatch(3, request=True)
    assert sent == [b"1", b"2", b"3"]


async def test_a_request_that_was_not_announced_goes_at_once() -> None:
    sent: list[bytes] = []
    gate = gate_into(sent)
    gate.dispatch(1, request=True)
    gate.dispatch(2, request=True)
    assert sent == [b"1", b"2"]


async def test_an_abort_never_overtakes_its_request() -> None:
    sent: list[bytes] = []
    gate = gate_into(sent)
    gate.expect(3)
    gate.dispatch("request", request=True)
    gate.dispatch("abort", request=False)
    assert sent == [b"request", b"abort"]


async def test_those_that_never_come_are_waited_for_only_so_long() -> None:
    sent: list[bytes] = []
    gate = gate_into(sent)
    gate.expect(5)
    gate.dispatch(1, request=True)
    await asyncio.sleep(3 * LONGEST_S)
    assert sent == [b"1"]
    gate.dispatch(2, request=True)
    assert sent == [b"1", b"2"], "what did not come is no longer expected"


async def test_what_is_held_is_encoded_before_the_sender_changes_it() -> None:
    sent: list[bytes] = []
    gate = gate_into(sent)
    gate.expect(2)
    thing = [1]
    gate.dispatch(thing, request=True)
    thing[0] = 2
    gate.dispatch("x", request=True)
    assert sent == [b"[1]", b"x"]
