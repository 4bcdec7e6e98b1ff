"""What a search is built on: the tree it grows in, where in it, and within what bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType

from search.contract import Costs, NodeId
from search.sample import SampleLimits
from search.seeds import derive_seed
from search.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text that a search may write itself, in the model's tokens.

    Args:
        token_ids: with the turn markers of the model's chat template, where it is a turn of its own.
        text: what of it belongs to the text of the path; empty for a turn.
    """

    token_ids: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the user that a search may write, to be put into the model's tokens by its chat template.

    Its tokens begin with the end of the model's own turn before it, and end where the model's next turn
    begins.
    """

    text: str


NO_PHRASES: Mapping[str, Phrase] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything of a search but its own parameters.

    Args:
        tree: shared with the searches it is nested in.
        calls: gives call numbers, unique in the tree.
        limits: bounds of every sample.
        costs: what calls other than `Generate` cost.
        seed: everything random in the search follows from it.
        phrases: what it may write itself, by name.
        root: the node that it grows from; its text starts after it.
        tier: the engine tier of its generations.
        unpaid: given tokens at the end of the path to `root` that no call has paid for yet.
        constrained: whether the request's grammar and penalties hold for its answers.
    """

    tree: Tree
    calls: Iterator[int]
    limits: SampleLimits
    costs: Costs
    seed: int
    phrases: Mapping[str, Phrase] = field(default_factory=lambda: NO_PHRASES)
    root: NodeId = ROOT
    tier: int = 0
    unpaid: int = 0
    constrained: bool = True

    @classmethod
    def of(
        cls,
        prompt_ids: tuple[int, ...],
        limits: SampleLimits,
        costs: Costs,
        seed: int,
        phrases: Mapping[str, Phrase] = NO_PHRASES,
    ) -> Ground:
        """The ground of a search that is not nested.

        Raises:
            ValueError: the prompt fills the context.
        """
        ground = cls(Tree(prompt_ids), count(1), limits, costs, seed, phrases)
        if ground.context_left < 1:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens and leaves no room in a context of "
                f"{limits.context_tokens}"
            )
        return ground

    def nested(self, number: int, *, root: NodeId | None = None, tier: int = 0, unpaid: int = 0) -> Ground:
        """The ground of the `number`-th search within this one, with a seed of its own.

        Args:
            root: where it grows from; None for the same node.
            tier: 0 for the same one.
            unpaid: as in the class; what this ground has unpaid is not passed on.
        """
        seed = derive_seed(self.seed, number, 1 << 20)
        at = self.root if root is None else root
        return replace(self, seed=seed, root=at, tier=tier or self.tier, unpaid=unpaid)

    @property
    def context_left(self) -> int:
        """Tokens that the model's context leaves after the root's path."""
        return self.limits.context_tokens - self.tree.path_tokens(self.root)

    @property
    def sample_tokens(self) -> int:
        """The most tokens of one sample from the root."""
        return min(self.limits.max_new_tokens, self.context_left)
