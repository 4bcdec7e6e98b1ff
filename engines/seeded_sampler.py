"""A sampler for SGLang that honours each request's seed on any device.

SGLang reads `sampling_seed` only in its deterministic mode, whose kernels need a GPU and which cannot
do `min_p`. This sampler takes the place of SGLang's `pytorch` one through its registry of samplers: one
uniform number per row, hashed from (seed, position), then the inverse of the cumulative distribution. A
sample thus depends on its seed and its probabilities alone, not on who shares the batch.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

SAMPLING_BACKEND = "pytorch"
HEAD = 1024
"""How many of the likeliest tokens are looked at before all are sorted."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) per row, from its seed and position by the splitmix64 finaliser.

    Args:
        seeds: (rows,), int64.
        positions: (rows,), integers.

    Returns:
        (rows,), float64, on the CPU.
    """
    seed = seeds.cpu().numpy().astype(np.uint64)
    position = positions.cpu().numpy().astype(np.uint64)
    bits = _mix(_mix(seed) + (position + np.uint64(1)) * _GOLDEN)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def sample(
    probabilities: torch.Tensor,
    draws: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> torch.Tensor:
    """Token ids by the inverse cumulative distribution, after top-k, top-p and min-p.

    Args:
        probabilities: (rows, vocabulary); left as it is.
        draws: (rows,) in [0, 1).
        top_ks, top_ps, min_ps: (rows,); a top-k of 1 is greedy, of the vocabulary's size or more is off.

    Returns:
        (rows,), int64.
    """
    vocabulary = probabilities.shape[-1]
    chosen = probabilities.argmax(dim=-1)
    sampled = top_ks > 1
    filtered = sampled & ((top_ks < vocabulary) | (top_ps < 1.0) | (min_ps > 0.0))
    plain = (sampled & ~filtered).nonzero().view(-1)
    if plain.numel():
        chosen[plain] = _inverse(probabilities[plain], draws[plain])
    rows = filtered.nonzero().view(-1)
    if rows.numel():
        limits = (top_ks[rows, None], top_ps[rows, None], min_ps[rows, None])
        chosen[rows] = _sample_filtered(probabilities[rows], draws[rows], limits)
    return chosen


_Limits: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _sample_filtered(probabilities: torch.Tensor, draws: torch.Tensor, limits: _Limits) -> torch.Tensor:
    """Sorting a large vocabulary takes longer than the model; mostly its head alone survives the filters."""
    head = min(HEAD, probabilities.shape[-1])
    kept, order = probabilities.topk(head, dim=-1, sorted=True)
    top_ks, top_ps, min_ps = limits
    settled = (top_ks <= head) | (kept.sum(-1, keepdim=True) > top_ps) | (kept[:, -1:] < kept[:, :1] * min_ps)
    settled = settled.view(-1) | (head == probabilities.shape[-1])
    chosen = _sample_sorted(kept, order, draws, limits)
    if not bool(settled.all()):
        rest = ~settled
        kept, order = probabilities[rest].sort(dim=-1, descending=True, stable=True)
        chosen[rest] = _sample_sorted(kept, order, draws[rest], (top_ks[rest], top_ps[rest], min_ps[rest]))
    return chosen


def _sample_sorted(
    kept: torch.Tensor, order: torch.Tensor, draws: torch.Tensor, limits: _Limits
) -> torch.Tensor:
    top_ks, top_ps, min_ps = limits
    before = kept.cumsum(-1) - kept
    dropped = torch.arange(kept.shape[-1], device=kept.device) >= top_ks
    dropped |= (before > top_ps) | (kept < kept[:, :1] * min_ps)
    return order.gather(1, _inverse(kept.masked_fill(dropped, 0.0), draws).view(-1, 1)).view(-1)


def _inverse(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    # Rounding must not push a draw to the total itself, beyond the last token that has any weight.
    target = torch.minimum(draws.view(-1, 1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).view(-1).clamp_(max=weights.shape[-1] - 1)


def install_seeded_sampler() -> None:
    """Make SGLang sample with seeds in this process. Idempotent."""
    from sglang.srt.layers import sampler
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    if SAMPLING_BACKEND in sampler._CUSTOM_SAMPLER_FACTORIES:
        return

    class SeededSampler(sampler.Sampler):  # type: ignore[misc]
        def _sample_from_probs(
            self, probs: torch.Tensor, sampling_info: Any, positions: torch.Tensor, _simple: bool
        ) -> tuple[torch.Tensor, None]:
            draws = uniforms(sampling_info.sampling_seed, positions).to(probs.device)
            ids = sample(probs, draws, sampling_info.top_ks, sampling_info.top_ps, sampling_info.min_ps)
            return ids.to(torch.int32), None

    def take_seeds(info: Any, batch: Any, _vocab_size: int) -> None:
        # SGLang fills `sampling_seed` in its deterministic mode only, but filters and merges it always.
        seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64, device=info.device)

    SamplingBatchInfo.adjusted_from_schedule_batch = take_seeds
    sampler.register_sampler_backend(SAMPLING_BACKEND, SeededSampler)
