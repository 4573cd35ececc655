"""One command for all measurements: ``python -m perf NAME``; ``make NAME`` calls it with what it needs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_PROGRAMS = {
    "bench-moves": "bench_moves",
    "bench-stages": "stages.cli",
    "chaos": "chaos.cli",
    "collect": "collect",
    "decisions": "decisions",
    "eval-open-llm": "eval_open_llm",
    "eval-recordings": "eval_recordings",
    "eval-voices": "eval_voices",
    "facts": "facts",
    "gateway-moves": "gateway_moves",
    "gpu-check": "gpu_check.cli",
    "interrupted": "interrupted",
    "knowledge": "knowledge",
    "load": "load",
    "memory-plans": "memory_plans",
    "observe": "observe",
    "one-caller": "one_caller",
    "over-agent": "over_agent",
    "pass-rates": "pass_rates",
    "perf-analyzer": "perf_analyzer.cli",
    "simulate": "simulate.cli",
    "soak": "soak.cli",
    "turn-words": "turn_words",
    "triton-check": "triton_check.cli",
    "turns-people": "turns_people",
    "word-times": "word_times",
}


def main() -> int:
    """Run a program; its exit status, or 2: there is none of this name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _PROGRAMS:
        print(f"usage: python -m perf NAME [--help]\nnames: {', '.join(_PROGRAMS)}", file=sys.stderr)
        return 2
    sys.argv[:2] = [name]
    # The programs name each other by the folder that they are in.
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module(_PROGRAMS[name]).main() or 0


if __name__ == "__main__":
    sys.exit(main())
