"""Writes the tables of docs/observability.md from the metrics themselves; run it after changing one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parley.agent.metrics import FAMILIES
from parley.llm.engine_metrics import ENGINE_FAMILIES
from parley.metrics import DROPPED, Family
from parley.models.nemotron_streaming import ASR_FALLBACKS
from parley.triton.model_control import DEAD_INSTANCES, MODEL_RESTARTS, SERVER_RESTARTS
from parley.triton.model_metrics import MODEL_FAMILIES
from parley.tts.espeak_phonemes.client import PHONEME_RESTARTS
from parley_gateway.metrics import Metrics
from parley_torch.models.chatterbox import NOT_NORMALIZED

DOCS = Path(__file__).parents[1] / "docs" / "observability.md"
Row = tuple[str, str, tuple[str, ...], str]
"""Name, type, labels and description of a metric."""


def sections() -> dict[str, list[Row]]:
    """The metrics of each section of the page."""
    models = (
        *MODEL_FAMILIES,
        *ENGINE_FAMILIES,
        ASR_FALLBACKS,
        NOT_NORMALIZED,
        PHONEME_RESTARTS,
        MODEL_RESTARTS,
        SERVER_RESTARTS,
        DEAD_INSTANCES,
        DROPPED,
    )
    return {
        "agent": [_row(family) for family in FAMILIES],
        "models": [_row(family) for family in models],
        "gateway": list(_gateway()),
    }


def _row(family: Family) -> Row:
    return family.name, family.kind, family.labels, family.description


def _gateway() -> Iterable[Row]:
    for name, collector in vars(Metrics()).items():
        if name == "registry":
            continue
        (described,) = collector.describe()
        suffix = "_total" if described.type == "counter" else ""
        labels = collector._labelnames  # noqa: SLF001 - a metric without series shows them nowhere else
        yield f"{described.name}{suffix}", described.type, labels, described.documentation


def with_tables(document: str) -> str:
    """The document with the tables as they are now."""
    for section, rows in sections().items():
        begin, end = f"<!-- {section}: written by build/metrics_docs.py -->\n", f"<!-- end of {section} -->\n"
        before, rest = document.split(begin)
        lines = ["| metric, with its labels | type | |", "|---|---|---|"]
        for name, kind, labels, description in rows:
            shown = f"{{{','.join(labels)}}}" if labels else ""
            lines.append(f"| `{name}{shown}` | {kind} | {description} |")
        table = "\n".join(lines)
        document = f"{before}{begin}\n{table}\n\n{end}{rest.split(end)[1]}"
    return document


if __name__ == "__main__":
    DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
