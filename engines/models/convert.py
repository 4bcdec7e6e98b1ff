"""`python -m engines.models.convert GGUF FOLDER [GREEDY]`: convert, and check what came out.

GREEDY is JSON: a user message, and the token ids that the model must answer with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engines.models.gguf_llama import convert
from engines.sglang_cpu import install_shims
from engines.tokenizer import ModelTokenizer


def greedy_answer(folder: Path, message: str, tokens: int) -> list[int]:
    """The model's greedy answer to a user message, in float32 with transformers."""
    install_shims()
    import torch
    from transformers import LlamaForCausalLM

    prompt = ModelTokenizer(folder).encode_chat([{"role": "user", "content": message}])
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def main(arguments: list[str]) -> None:
    source, folder = Path(arguments[0]), Path(arguments[1])
    convert(source, folder)
    if len(arguments) > 2:
        message, expected = json.loads(arguments[2])
        answer = greedy_answer(folder, message, len(expected))
        if answer != expected:
            raise SystemExit(f"the converted model answers {answer} instead of {expected}")


if __name__ == "__main__":
    main(sys.argv[1:])
