"""A process reward from a model with a reward head: how a path is put to it, and what its outputs mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from engines.models import RewardHeadForm
from orchestrator.verifiers.prefix import judged_prefix

Activation = Literal["sigmoid", "identity", "softmax"]

_ROUNDING = 1e-3
"""How far a head that was trained on 0..1 may be off, in a type with few digits."""


class RewardUnreadable(Exception):
    """The head's outputs are not what its form says. No score follows from them."""


@dataclass(frozen=True, slots=True)
class RewardHead:
    """The form of a reward head in token ids, which must mean the same to it and to the policy.

    The path so far, without trailing `strip_ids`, is followed by `suffix_ids`; the head is read at the last
    token, and becomes a score in 0..1.

    Args:
        activation: "sigmoid" of a logit; "identity" of what was trained to lie in 0..1; "softmax" over all
            outputs.
        output: which of the outputs it is.

    Raises:
        ValueError: the activation is not known, or the output is negative.
    """

    suffix_ids: tuple[int, ...] = ()
    strip_ids: frozenset[int] = frozenset()
    activation: Activation = "sigmoid"
    output: int = 0

    def __post_init__(self) -> None:
        if self.activation not in get_args(Activation):
            legal = ", ".join(get_args(Activation))
            raise ValueError(f"activation: must be one of {legal}, not {self.activation!r}")
        if self.output < 0:
            raise ValueError(f"output: must not be negative, but is {self.output}")

    @property
    def tokens(self) -> int:
        """Charged tokens of one score: the suffix. Nothing is decoded."""
        return len(self.suffix_ids)

    def input_ids(self, path_ids: tuple[int, ...], prompt_tokens: int) -> tuple[int, ...]:
        """Token ids for the head; the prompt itself, `prompt_tokens` long, is never stripped."""
        return judged_prefix(path_ids, prompt_tokens, self.strip_ids, self.suffix_ids)

    def score(self, outputs: Sequence[float]) -> float:
        """The score (0..1) that the head's raw outputs stand for.

        Raises:
            RewardUnreadable: there is no such output, one is not finite, or one that was to lie in 0..1 does
                not.
        """
        if self.output >= len(outputs):
            raise RewardUnreadable(f"the head has {len(outputs)} outputs, and no number {self.output}")
        if not all(map(math.isfinite, outputs)):
            raise RewardUnreadable("an output of the head is not finite")
        value = outputs[self.output]
        match self.activation:
            case "sigmoid":
                return _sigmoid(value)
            case "softmax":
                if len(outputs) < 2:
                    raise RewardUnreadable("a softmax over one output is always 1")
                return 1.0 / sum(math.exp(min(other - value, 700.0)) for other in outputs)
            case "identity":
                if not -_ROUNDING <= value <= 1.0 + _ROUNDING:
                    raise RewardUnreadable(f"the head gave {value:g}, which is not in 0..1")
                return min(1.0, max(0.0, value))


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    small = math.exp(value)
    return small / (1.0 + small)


class Vocabulary(Protocol):
    """What is needed of a tokenizer here."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> tuple[int, ...]: ...


def make_reward_head(form: RewardHeadForm, head: Vocabulary, policy: Vocabulary) -> RewardHead:
    """A head's form in token ids.

    Args:
        head, policy: tokenizers of the model with the head, and of the one whose paths it judges.

    Raises:
        ValueError: ids mean something else to the two, so that a path cannot be handed on as it is.
    """
    if head.fingerprint != policy.fingerprint:
        raise ValueError("the reward head's vocabulary is not that of the model whose paths it is to judge")
    return RewardHead(
        suffix_ids=head.encode(form.suffix) if form.suffix else (),
        strip_ids=frozenset(head.encode(form.strip) if form.strip else ()) | frozenset(policy.eos_ids),
        activation=form.activation,
        output=form.output,
    )
