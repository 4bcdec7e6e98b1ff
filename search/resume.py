"""What a search that is rebuilt from its log was waiting for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from search.contract import Call, CallId, Chunk, Generate
from search.log import Asked, EventLog, Told


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that had not ended where a log ends.

    Args:
        call: as the search asked for it.
        received: tokens of it that had come; they are in the tree of the replayed search.
    """

    call: Call
    received: int = 0

    @property
    def rest(self) -> Call:
        """What is still to be done, under the call's own number.

        A `Generate` goes on in its own node from where that ends: its parent is the node itself. Its given
        tokens are paid for already. With no token left (`max_new_tokens` 0) nothing is to be generated: only
        its end is to be told, which is by `length`.
        """
        if not isinstance(self.call, Generate):
            return self.call
        left = self.call.max_new_tokens - self.received
        return replace(self.call, parent=self.call.node, max_new_tokens=left, given_tokens=0)


def in_flight(log: EventLog) -> tuple[Pending, ...]:
    """The calls that the search of a log was waiting for at its end, in the order they were asked.

    A runner that has replayed the log sends `rest` of each again and tells the search what comes back.

    Raises:
        ValueError: the log is truncated, so that its end is not the search's.
    """
    if log.truncated:
        raise ValueError("the log is truncated; what came after its end is not known")
    waiting: dict[CallId, Pending] = {}
    for entry in log.entries:
        if isinstance(entry, Asked):
            waiting |= {call.id: Pending(call) for call in entry.calls}
        elif isinstance(entry, Told):
            event = entry.event
            pending = waiting.get(event.call)
            if pending is not None and isinstance(event, Chunk):
                received = pending.received + len(event.token_ids)
                waiting[event.call] = replace(pending, received=received)
            else:
                waiting.pop(event.call, None)
            for cancelled in entry.cancels:
                waiting.pop(cancelled, None)
    return tuple(waiting.values())
