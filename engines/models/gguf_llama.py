"""A Llama model in a GGUF file to a checkpoint folder in the Hugging Face layout.

Weights are dequantised and stored in bfloat16. The tokenizer is rebuilt from the file's vocabulary and
merges, for the pre-tokenizer kind `smollm` alone: others split text otherwise and would tokenise wrongly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_CONTROL_TOKEN = 3
_WEIGHTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, target: Path) -> None:
    """Write the checkpoint into the folder `target`, which must exist.

    Raises:
        ValueError: the file holds something else than a Llama with a `smollm` tokenizer.
    """
    from gguf import GGUFReader

    reader = GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = (fields.get("general.architecture"), fields.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ValueError(f"{source.name} holds {kind}, not a llama with a smollm tokenizer")
    _write_weights(reader, fields, target)
    _write_json(target / "config.json", _config(fields, {tensor.name for tensor in reader.tensors}))
    _write_json(
        target / "generation_config.json",
        {"bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": _eos(fields)},
    )
    _write_tokenizer(fields, target)


def _write_weights(reader: Any, fields: dict[str, Any], target: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        part, name = _names(tensor.name)
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if part in heads:
            values = _unpermute(values, heads[part])
        weights[name] = values.to(torch.bfloat16).contiguous()
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})


def _names(name: str) -> tuple[str, str]:
    """A tensor's part, and its name in the checkpoint."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return part, f"model.layers.{layer}.{_LAYER_WEIGHTS[part]}.{suffix}"
    return stem, f"{_WEIGHTS[stem]}.{suffix}"


def _unpermute(values: Any, heads: int) -> Any:
    """llama.cpp pairs the rotary dimensions (0, 1), (2, 3), …; the checkpoint (0, d/2), (1, d/2 + 1), …."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _eos(fields: dict[str, Any]) -> int:
    eos: int = fields["tokenizer.ggml.eos_token_id"]
    return eos


def _config(fields: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
    hidden = fields["llama.embedding_length"]
    heads = fields["llama.attention.head_count"]
    theta = fields["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": _eos(fields),
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(fields: dict[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        token
        for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
        if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(target / "tokenizer.json"))
    named = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": fields["llama.context_length"],
            "chat_template": fields["tokenizer.chat_template"],
            **named,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(
        json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
