"""How what an engine or a verifier says is put to a search."""

from __future__ import annotations

from collections.abc import Sequence

from engines.protocol import Chunk, Finish
from orchestrator.calls import RunningCall
from orchestrator.path_text import Piece
from orchestrator.verifiers.port import Judgement
from search import contract


def kind_of(call: contract.Call) -> str:
    """The kind of a call in one word, as spans and metrics name it."""
    return type(call).__name__.lower()


def node_of(call: contract.Call) -> int:
    """The node that a call is about; 0 where it is about none."""
    return 0 if isinstance(call, contract.Equate) else call.node


def piece_of(running: RunningCall, chunk: Chunk, text: str) -> contract.Chunk:
    """New tokens of a generation, and the text that they add."""
    means = tuple(sum(p for _, p in top) / len(top) for top in chunk.top_logprobs if top)
    if len(means) < len(chunk.token_ids):
        means = ()
    return contract.Chunk(running.call.id, chunk.token_ids, text, chunk.logprobs, means)


def ends_step(running: RunningCall, chunk: Chunk) -> bool:
    """Whether a generation ended at one of its own ends and not at a stop string of the request."""
    call, piece = running.call, running.piece
    if not isinstance(call, contract.Generate) or piece is None or piece.matched_stop is not None:
        return False
    return chunk.finish is Finish.STOP and chunk.matched_stop in call.until


def end_of(running: RunningCall, chunk: Chunk, context_tokens: int) -> contract.Generated:
    """The end of a generation whose last chunk this is."""
    call = running.call.id
    if chunk.finish is Finish.LENGTH:
        full = running.path_tokens + running.received >= context_tokens
        return contract.Generated(call, "context" if full else "length")
    if not ends_step(running, chunk) or running.piece is None:
        return contract.Generated(call, "stop")
    matched = str(chunk.matched_stop)
    return contract.Generated(call, "step", matched, running.piece.tokens_of(matched))


def end_seen(
    call: contract.Generate, piece: Piece, ids: Sequence[int], eos_ids: Sequence[int], received: int
) -> contract.Generated | None:
    """The end that a generation had come to when all its tokens but not its end had been told; else None.

    Args:
        piece: the text of its tokens.
        ids: its tokens.
        received: how many they are.
    """
    if piece.matched_stop is not None or (ids and ids[-1] in eos_ids):
        return contract.Generated(call.id, "stop")
    for until in call.until:
        if tokens := piece.tokens_of(until):
            return contract.Generated(call.id, "step", until, tokens)
    return contract.Generated(call.id, "length") if received >= call.max_new_tokens else None


def event_of(call: contract.Call, judgement: Judgement) -> contract.Event | None:
    """What a search is told of a judgement; None when there is nothing to tell but that it failed."""
    match call:
        case contract.Score() if judgement.score is not None:
            return contract.Scored(call.id, judgement.score)
        case contract.Check() if judgement.verdict is not None:
            return contract.Checked(call.id, judgement.verdict, judgement.score)
        case contract.Compare() if judgement.score is not None:
            return contract.Compared(call.id, judgement.score)
        case contract.Equate():
            same = {"right": True, "wrong": False}.get(judgement.verdict or "")
            return contract.Equated(call.id, same)
    return None
