"""The texts that a search may write itself, in a model's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.catalog import ServedModel
from search.ground import Phrase, Turn
from search.registry import Technique
from search.segments import THINK_AGAIN, THINK_CLOSE, THINK_OPEN


def make_phrases(technique: Technique, params: Any, model: ServedModel) -> Mapping[str, Phrase]:
    """The phrases of a technique and, for a model that thinks, those that end and continue its thinking."""
    texts: dict[str, str] = {}
    if model.thinking is not None:
        texts |= {
            THINK_OPEN: f"{model.thinking.open}\n",
            THINK_CLOSE: f"\n{model.thinking.close}\n\n",
            THINK_AGAIN: "\nWait",
        }
    found = {name: Phrase(model.tokenizer.encode(text), text) for name, text in texts.items()}
    for name, wanted in technique.phrases(params).items():
        if isinstance(wanted, Turn):
            found[name] = Phrase(model.tokenizer.encode_turn(wanted.text))
        else:
            found[name] = Phrase(model.tokenizer.encode(wanted), wanted)
    return found
