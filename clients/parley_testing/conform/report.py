"""Outcomes of checks as a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parley_testing.conform.checks import CheckResult
from parley_testing.results import HTML_STYLE

MARKS = {"passed": "✓", "refused": "refused", "failed": "✗"}


def to_html(url: str, protocol: str, outcomes: Sequence[CheckResult]) -> str:
    """One page."""
    title = f"{escape(protocol)} at {escape(url)}: {summary(outcomes)}"
    rows = "\n".join(
        f"<tr{' class=bad' if one.result != 'passed' else ''}><td>{MARKS[one.result]}"
        f"<td>{escape(one.name)}<td>{escape(one.title)}<td>{escape(one.detail)}"
        for one in outcomes
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{HTML_STYLE}</style>\n"
        f"<h1>{title}</h1>\n<table><tr><th><th>check<th>what<th>why not\n{rows}\n</table>\n"
    )


def summary(outcomes: Sequence[CheckResult]) -> str:
    """How many passed."""
    return f"{sum(one.result == 'passed' for one in outcomes)} of {len(outcomes)} passed"
