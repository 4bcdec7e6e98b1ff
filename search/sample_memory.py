"""Which samples hold KV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from search.ground import Ground
from search.sample import Sample


class SampleMemory:
    """The KV of the samples of one search. Samples share nothing but the path to the root of the search.

    Args:
        ground: what the samples are drawn from.
    """

    def __init__(self, ground: Ground) -> None:
        self._tree = ground.tree
        self._root = ground.root

    @property
    def prompt_wake(self) -> int:
        """KV tokens that the path to the root takes up again with the first sample; 0 when it is held."""
        return self._tree.wake_cost(self._root)

    def wake(self, sample: Sample) -> None:
        """Want the KV of a sample's path again."""
        sample.awake = True
        self._tree.wake(sample.nodes[-1])

    def retire(self, sample: Sample) -> None:
        """Want the KV of a sample no more."""
        for node in sample.nodes:
            self._tree.retire(node)

    def put_to_sleep(self, samples: Sequence[Sample], need: int, kv_tokens: int) -> int:
        """Let the youngest go until there is room for `need`. Returns the KV tokens that are free then.

        For when nothing in flight will free any: samples that hold KV waiting for each other's would wait
        for ever.
        """
        for sample in [s for s in reversed(samples) if s.awake]:
            if kv_tokens >= need:
                break
            sample.awake = False
            self.retire(sample)
            kv_tokens += sample.tokens
        return kv_tokens

    def release(self, samples: Iterable[Sample]) -> None:
        """The engine dropped all KV, that of these samples, which still want theirs, too."""
        self._tree.release()
        for sample in samples:
            sample.awake = False
