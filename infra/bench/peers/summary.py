"""From rows to figures: one record per side and concurrency, the better peer, and how ours compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.bench.peers.counting import Tokens
from infra.bench.peers.sides import PEERS, Side
from infra.bench.stats import Paired, compare


@dataclass(frozen=True, slots=True)
class Verdict:
    """One problem on one side.

    Args:
        answered: it has an answer at all, right or wrong.
        failed: the request ended in an error, or the side said that it failed.
    """

    id: str
    level: int
    right: bool
    answered: bool
    failed: bool
    seconds: float


@dataclass
class Record:
    """One side at one concurrency, over its blocks."""

    side: Side
    concurrency: int
    verdicts: list[Verdict] = field(default_factory=list)
    walls: list[tuple[int, float]] = field(default_factory=list)
    """Problems and seconds of each block."""
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def problems(self) -> int:
        return len(self.verdicts)

    @property
    def right(self) -> int:
        return sum(v.right for v in self.verdicts)

    @property
    def accuracy(self) -> float:
        return self.right / self.problems

    @property
    def failed(self) -> int:
        return sum(v.failed for v in self.verdicts)

    @property
    def wall(self) -> float:
        return sum(seconds for _, seconds in self.walls)

    @property
    def pace(self) -> float:
        """Seconds of wall time per problem."""
        return self.wall / self.problems

    @property
    def work(self) -> float:
        """Generated and verifier tokens per problem."""
        return self.tokens.work / self.problems


@dataclass(frozen=True, slots=True)
class Versus:
    """Our side against another, on the problems that both had.

    Args:
        speedup: their wall time per problem over ours.
        speedups: the same by block.
        tokens: our generated and verifier tokens per problem over theirs.

    Sides that are not core had fewer problems, of the same mix of levels: their speed and tokens are compared
    by means over different numbers of problems.
    """

    other: Record
    paired: Paired
    speedup: float
    speedups: tuple[float, ...]
    tokens: float


def better_peer(records: Iterable[Record]) -> Record:
    """The peer of the RESULT line: of the peers' core sides the most accurate, of equals the fastest.

    Raises:
        ValueError: there is none.
    """
    peers = [r for r in records if r.side.core and r.side.system in PEERS]
    return max(peers, key=lambda r: (r.accuracy, -r.wall))


def versus(ours: Record, other: Record, seed: int) -> Versus:
    """Compare two records at the same concurrency."""
    mine, theirs = _by_id(ours), _by_id(other)
    shared = [id_ for id_ in mine if id_ in theirs]
    blocks = zip(ours.walls, other.walls, strict=False)
    return Versus(
        other=other,
        paired=compare([mine[i].right for i in shared], [theirs[i].right for i in shared], seed),
        speedup=other.pace / ours.pace,
        speedups=tuple((seconds / n) / (own / m) for (m, own), (n, seconds) in blocks),
        tokens=ours.work / other.work,
    )


def result(verdict: Versus) -> dict[str, float]:
    """The figures of the RESULT line."""
    return {
        "speedup": verdict.speedup,
        "acc_gap": verdict.paired.difference,
        "token_ratio": verdict.tokens,
    }


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _by_id(record: Record) -> Mapping[str, Verdict]:
    return {v.id: v for v in record.verdicts}
