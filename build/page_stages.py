"""Writes the stages of an answer for the gateway's page; run it after changing them."""

from __future__ import annotations

from pathlib import Path

from parley_client.waterfall.stages import STAGES

MODULE = Path(__file__).parents[1] / "clients/gateway/parley_gateway/apis/page/static/talk/stages.js"


def stages_module() -> str:
    """The page's module."""
    lines = [
        "// @ts-check",
        "/** The stages of an answer, as `parley trace` has them. Written by build/page_stages.py. */",
        "",
        "/** @typedef {{title: string, meaning: string}} Stage */",
        "",
        "export const STAGES = /** @type {Readonly<Record<string, Stage>>} */ ({",
    ]
    for name, stage in STAGES.items():
        lines += [
            f"  {name}: {{",
            f"    title: '{stage.title}',",
            f"    meaning: '{stage.meaning}',",
            "  },",
        ]
    return "\n".join([*lines, "});", ""])


if __name__ == "__main__":
    MODULE.write_text(stages_module(), encoding="utf-8")
