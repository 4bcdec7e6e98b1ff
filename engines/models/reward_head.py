"""From a language model to the same model with a reward head. Needs no torch, and takes a moment."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from engines.tokenizer import ModelTokenizer

_WEIGHTS = "model.safetensors"
_EMBEDDING = "model.embed_tokens.weight"
_OWN_FILES = (_WEIGHTS, "config.json", "generation_config.json", "prepared.json")


def derive(base: Path, target: Path, labels: tuple[str, str]) -> None:
    """Write into the folder `target` the checkpoint of `base` with a head of one output in place of its own.

    The output is the logit of the first label minus that of the second, so that its sigmoid is the first
    one's probability among the two.

    Args:
        base: folder of a Llama checkpoint in one file, with tied embeddings in bfloat16.
        target: an existing folder.

    Raises:
        ValueError: it is something else, or a label is not one token.
    """
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if config.get("architectures") != ["LlamaForCausalLM"] or not config.get("tie_word_embeddings"):
        raise ValueError(f"{base.name} is not a Llama with tied embeddings")
    tokenizer = ModelTokenizer(base)
    right, wrong = (tokenizer.token_id(label) for label in labels)
    _write_weights(base / _WEIGHTS, target / _WEIGHTS, right, wrong)
    # `num_labels` is what SGLang reads, and `id2label` what transformers makes it of.
    own: dict[str, Any] = {
        "architectures": ["LlamaForSequenceClassification"],
        "num_labels": 1,
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
    }
    text = json.dumps({**config, **own}, indent=1, sort_keys=True)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")
    for file in sorted(base.iterdir()):
        if file.is_file() and file.name not in _OWN_FILES:
            shutil.copyfile(file, target / file.name)


def _write_weights(source: Path, target: Path, right: int, wrong: int) -> None:
    """The same safetensors file with the head in front.

    The format: the length of the header in 8 bytes, little-endian; the header in JSON, padded to a multiple
    of 8; the tensors' bytes without gaps, by offsets that the header has. In front the head is aligned.
    """
    raw = source.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = json.loads(raw[8:start])
    metadata = tensors.pop("__metadata__", {})
    embedding = tensors.get(_EMBEDDING)
    if embedding is None or embedding["dtype"] != "BF16":
        raise ValueError(f"{source} has no {_EMBEDDING} in bfloat16")
    columns = embedding["shape"][1]
    first = start + embedding["data_offsets"][0]
    rows = [raw[first + 2 * columns * row :][: 2 * columns] for row in (right, wrong)]
    head = _difference(*rows)
    for tensor in tensors.values():
        tensor["data_offsets"] = [offset + len(head) for offset in tensor["data_offsets"]]
    score = {"dtype": "F32", "shape": [1, columns], "data_offsets": [0, len(head)]}
    header = json.dumps({"__metadata__": metadata, "score.weight": score, **tensors}).encode()
    header += b" " * (-len(header) % 8)
    with target.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        file.write(head)
        file.write(memoryview(raw)[start:])


def _difference(right: bytes, wrong: bytes) -> bytes:
    """In float32: the difference of two bfloat16 numbers is mostly not one itself."""
    return struct.pack(
        f"<{len(right) // 2}f", *(a - b for a, b in zip(_wide(right), _wide(wrong), strict=True))
    )


def _wide(row: bytes) -> tuple[float, ...]:
    """Numbers in bfloat16, which are the upper halves of those in float32."""
    halves = [row[at : at + 2] for at in range(0, len(row), 2)]
    return struct.unpack(f"<{len(halves)}f", b"".join(b"\0\0" + half for half in halves))
