from __future__ import annotations

import pytest
import torch

from engines import seeded_sampler
from engines.seeded_sampler import sample, uniforms

OFF = 2**30


def rows(count: int, value: float) -> torch.Tensor:
    return torch.full((count,), value)


def draw(
    probabilities: torch.Tensor, count: int, *, top_k: int = OFF, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    draws = uniforms(torch.arange(count), torch.zeros(count, dtype=torch.int64))
    return sample(
        probabilities.expand(count, -1),
        draws,
        torch.full((count,), top_k),
        rows(count, top_p),
        rows(count, min_p),
    )


def shares(ids: torch.Tensor, vocabulary: int) -> list[float]:
    return [(ids == token).float().mean().item() for token in range(vocabulary)]


def test_samples_are_distributed_as_their_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.0, 0.2])
    assert shares(draw(probabilities, 40_000), 4) == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=0.01)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"top_k": 1}, [0.0, 1.0, 0.0, 0.0]),
        ({"top_k": 2}, [0.0, 4 / 7, 3 / 7, 0.0]),
        ({"top_p": 0.6}, [0.0, 4 / 7, 3 / 7, 0.0]),
        ({"min_p": 0.5}, [2 / 9, 4 / 9, 3 / 9, 0.0]),
    ],
)
def test_filters_drop_the_tail_and_keep_the_proportions(
    filters: dict[str, float], expected: list[float]
) -> None:
    probabilities = torch.tensor([0.2, 0.4, 0.3, 0.1])
    ids = draw(probabilities, 40_000, **filters)  # type: ignore[arg-type]
    assert shares(ids, 4) == pytest.approx(expected, abs=0.01)


def test_numbers_are_uniform_over_seeds_and_over_positions() -> None:
    many = torch.arange(50_000)
    for drawn in (uniforms(many, torch.zeros_like(many)), uniforms(torch.zeros_like(many), many)):
        assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
        assert torch.histc(drawn, 10, 0, 1).tolist() == pytest.approx([5_000] * 10, rel=0.06)
        assert 0 <= drawn.min() <= drawn.max() < 1
    neighbours = torch.stack(
        [uniforms(many, torch.ones_like(many)), uniforms(many, 2 * torch.ones_like(many))]
    )
    assert abs(torch.corrcoef(neighbours)[0, 1].item()) < 0.02


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    probabilities = torch.softmax(torch.randn(6, 50), -1)
    seeds, positions = torch.tensor([5, -1, 2**62, 0, 9, 5]), torch.tensor([3, 3, 3, 4, 5, 9])
    top_ks, top_ps, min_ps = torch.tensor([OFF, 1, 5, OFF, OFF, OFF]), rows(6, 1.0), rows(6, 0.0)
    top_ps[3], min_ps[4] = 0.5, 0.3
    together = sample(probabilities, uniforms(seeds, positions), top_ks, top_ps, min_ps)
    for i in range(6):
        one = slice(i, i + 1)
        alone = sample(
            probabilities[one], uniforms(seeds[one], positions[one]), top_ks[one], top_ps[one], min_ps[one]
        )
        assert alone.item() == together[i].item()


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(OFF, 0.9, 0.0), (OFF, 0.3, 0.0), (40, 1.0, 0.0), (3000, 1.0, 0.0), (OFF, 1.0, 0.05), (9, 0.9, 0.1)],
)
def test_looking_at_the_head_first_changes_no_sample(
    monkeypatch: pytest.MonkeyPatch, top_k: int, top_p: float, min_p: float
) -> None:
    torch.manual_seed(1)
    probabilities = torch.softmax(torch.randn(1, 5000, dtype=torch.float64) * 2, -1)
    quick = draw(probabilities, 300, top_k=top_k, top_p=top_p, min_p=min_p)
    monkeypatch.setattr(seeded_sampler, "HEAD", 5000)
    assert torch.equal(quick, draw(probabilities, 300, top_k=top_k, top_p=top_p, min_p=min_p))


def test_the_largest_draw_still_takes_a_token_that_has_a_chance() -> None:
    probabilities = torch.tensor([[0.25, 0.75, 0.0, 0.0]])
    largest = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    taken = sample(probabilities, largest, torch.tensor([OFF]), rows(1, 1.0), rows(1, 0.0))
    assert taken.tolist() == [1]
