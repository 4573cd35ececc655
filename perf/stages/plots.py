"""Figures of all endpoints over the load, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
from harness.stats import estimate
from matplotlib.figure import Figure as Plot

from stages.results import FIGURES, LevelResult

_SIZE_INCHES = (9.6, 3.8)
_MARKS = {0.5: "o", 0.95: "^"}

LEGEND = (
    "Circles are medians, triangles 95th percentiles where there were enough turns, "
    "bars their intervals of 95 %."
)
_APART = 0.16
"""Between the marks of two endpoints, in steps of the axis."""


def draw_all(results: Sequence[LevelResult]) -> list[tuple[str, str]]:
    """A title and an SVG for each figure that was measured."""
    return [
        (f"{FIGURES[name].stage.value}: {FIGURES[name].title}", _draw(name, results))
        for name in FIGURES
        if any(one.values(name) for one in results)
    ]


def _draw(name: str, results: Sequence[LevelResult]) -> str:
    """Percentiles with their intervals over the load, an endpoint by a colour."""
    shown = [one for one in results if one.values(name)]
    levels = sorted({one.concurrency for one in shown})
    endpoints = list(dict.fromkeys(one.endpoint for one in shown))
    # Text stays text: a reader can search it, and the file is smaller. A fixed salt keeps ids the same.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        plot = Plot(figsize=_SIZE_INCHES, layout="constrained")
        axes = plot.subplots()
        for number, endpoint in enumerate(endpoints):
            shift = _APART * (number - (len(endpoints) - 1) / 2)
            for share, mark in _MARKS.items():
                points = [
                    (levels.index(one.concurrency) + shift, found)
                    for one in shown
                    if one.endpoint == endpoint and (found := estimate(one.values(name), share))
                ]
                if not points:
                    continue
                middle = [found.value for _, found in points]
                spread = [
                    [found.value - found.low for _, found in points],
                    [found.high - found.value for _, found in points],
                ]
                axes.errorbar(
                    [at for at, _ in points],
                    middle,
                    yerr=spread,
                    fmt=mark,
                    color=f"C{number % 10}",
                    capsize=3,
                    label=endpoint if share == min(_MARKS) else None,
                )
        axes.set_xticks(range(len(levels)), [str(level) for level in levels])
        axes.set_xlim(-0.5, len(levels) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("at once")
        axes.set_ylabel(FIGURES[name].unit or "ratio")
        axes.grid(axis="y", alpha=0.3)
        plot.legend(loc="outside right upper", fontsize="small", frameon=False)
        file = io.StringIO()
        plot.savefig(file, format="svg", metadata={"Date": None})
    drawn = file.getvalue()
    return drawn[drawn.index("<svg") :]
