"""Accuracy against total tokens, as a picture for the README."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from infra.bench.search.summary import Figures


def draw(figures: Sequence[Figures], path: Path, title: str) -> None:
    """Write an SVG; one point a configuration with its 95 % interval, one colour a technique."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(figsize=(9, 5.5))
    families = sorted({_family(f) for f in figures})
    for number, family in enumerate(families):
        part = sorted((f for f in figures if _family(f) == family), key=lambda f: f.tokens)
        x, y = [f.tokens for f in part], [100 * f.accuracy for f in part]
        errors = [[100 * (f.accuracy - f.low) for f in part], [100 * (f.high - f.accuracy) for f in part]]
        colour = pyplot.get_cmap("tab20")(number % 20)
        axes.errorbar(x, y, yerr=errors, color=colour, marker="o", capsize=2, linewidth=1, label=family)
        for f in part:
            axes.annotate(
                f.config, (f.tokens, 100 * f.accuracy), fontsize=6, xytext=(3, 3), textcoords="offset points"
            )
    axes.set_xscale("log", base=2)
    ticks = [2**k for k in range(math.floor(math.log2(min(f.tokens for f in figures))), 13)]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_xlabel("total tokens a problem: prompt, all samples, verifier")
    axes.set_ylabel("right answers, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    chart.tight_layout()
    chart.savefig(path, metadata={"Date": None})
    pyplot.close(chart)


def _family(figures: Figures) -> str:
    return figures.config.rstrip("0123456789x, ").split(",")[0]
