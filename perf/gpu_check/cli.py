"""Check the gpu profile's networks at their real sizes, with random weights: ``make gpu-check``.

Needs no weights and no Triton. A section whose packages are not installed is skipped and says so. Without a
GPU the networks are narrow, and kernels run in the compiler's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from gpu_check.findings import Findings, Section, Settings, SkippedError
from gpu_check.language import check_qwen3, check_t3
from gpu_check.recognition import check_kernels, check_nemotron, check_parakeet
from gpu_check.synthesis import check_s3gen

_SECTIONS: dict[str, Section] = {
    "kernels": check_kernels,
    "nemotron": check_nemotron,
    "parakeet": check_parakeet,
    "s3gen": check_s3gen,
    "t3": check_t3,
    "qwen3": check_qwen3,
}


def main() -> int:
    """Run the sections; 1 if something failed, or if sections were asked for and none could run."""
    args = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = describe(device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    found: list[Findings] = []
    for name in args.only or _SECTIONS:
        print(name, flush=True)
        ends_at = time.monotonic() + 60.0 * args.minutes
        found.append(run(name, Settings(device, args.small or device.type == "cpu", ends_at)))
        if args.json:  # after each, because a later one may end the process
            sections = [asdict(one) for one in found]
            args.json.write_text(json.dumps({"machine": machine, "sections": sections}, indent=1))
    checks = [check for findings in found for check in findings.checks]
    failed = sum(not check.passed for check in checks) + sum(bool(findings.error) for findings in found)
    idle = [findings.section for findings in found if not findings.figures]
    print(f"{len(checks)} checks, {failed} failed; not run: {', '.join(idle) or 'nothing'}")
    return 1 if failed or (args.only and len(idle) == len(found)) else 0


def run(name: str, settings: Settings) -> Findings:
    """One section; what it raises is in the findings."""
    findings = Findings(name)
    try:
        _SECTIONS[name](settings, findings)
    except SkippedError as error:
        findings.skipped = str(error)
    except ImportError as error:
        findings.skipped = f"{error}; docs/gpu.md says what each section needs"
    except Exception as error:  # noqa: BLE001 - the other sections run all the same
        traceback.print_exc()
        findings.error = f"{type(error).__name__}: {error}"
    if findings.skipped:
        print(f"  skipped: {findings.skipped}")
    if findings.error:
        print(f"  FAILED: {findings.error}")
    return findings


def describe(device: torch.device) -> dict[str, str]:
    """What ran it."""
    machine = {"Python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine["GPU"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    else:
        machine["GPU"] = "none"
    return machine


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=sorted(_SECTIONS), help="a section; repeatable")
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        help="after which a section begins nothing new; a start takes minutes more (default: %(default)g)",
    )
    parser.add_argument("--small", action="store_true", help="narrow networks on a GPU, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    return parser.parse_args()
