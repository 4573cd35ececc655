"""Runs the numeric unit tests with the libraries' code for other processors.

Numeric libraries choose their code by the processor that they find, and with it the order of their sums. A
test that passes here may then fail elsewhere. Variables of OpenBLAS, numpy, oneDNN, MKL and torch make them
choose as on another processor; before the tests run, each library is asked whether it did. ONNX Runtime and
vLLM's own kernels have no such variable: they stay those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FOLDERS = (
    *("unit/asr", "unit/audio", "unit/gateway/audio", "unit/tts", "unit/turns", "unit/vad"),
    "unit/llm/test_vllm_int8.py",
    *("torch/asr", "torch/tts"),
)
WITHOUT = ("unit/tts/normalization", "torch/tts/t3/test_t3_engine.py")
"""Texts, and an engine whose kernels are vLLM's own."""
TESTS = Path(__file__).parent


class Processor(NamedTuple):
    """A kind of processor, as the libraries know it."""

    name: str
    needs: str
    """What this machine's processor must have to run such code, as /proc/cpuinfo calls it."""
    openblas: str
    torch: str
    onednn: str
    onednn_says: str
    without: str
    """The features of numpy's own loops that it lacks, as a regular expression."""


PROCESSORS = (
    Processor("skylake-x", "avx512dq", "SkylakeX", "avx512", "AVX512_CORE", "Intel AVX-512", "(?!)"),
    Processor("zen", "avx2", "Zen", "avx2", "AVX2", "Intel AVX2", "AVX512"),
    Processor("haswell", "avx2", "Haswell", "avx2", "AVX2", "Intel AVX2", "AVX512"),
    Processor("nehalem", "sse4_2", "Nehalem", "default", "SSE41", "Intel SSE4.1", "AVX|FMA|F16C"),
)
_VARIABLES = (
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
)
_ASK = """
import ctypes, json, sys
import numpy as np
import torch
from threadpoolctl import threadpool_info
from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__
with torch.backends.mkldnn.verbose(1):
    torch.nn.functional.conv2d(torch.randn(8, 16, 64, 64), torch.randn(32, 16, 3, 3))
with torch.backends.mkl.verbose(1):
    torch.randn(64, 64) @ torch.randn(64, 64)
ctypes.CDLL(None).fflush(None)
blas = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
print(json.dumps({
    "openblas": sorted({one["architecture"] for one in blas}),
    "numpy": [name for name in __cpu_dispatch__ if __cpu_features__[name]],
    "torch": torch.backends.cpu.get_cpu_capability().lower(),
}))
"""


_TESTS_FAILED = 1
"""Pytest's exit status; others are of runs that broke off."""


class Libraries(NamedTuple):
    """What the libraries chose."""

    openblas: list[str]
    numpy: list[str]
    torch: str
    onednn: str
    mkl: str


def ask(environment: dict[str, str]) -> Libraries:
    """What the libraries choose in an environment."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"the libraries cannot be asked:\n{done.stderr}")
    *verbose, last = done.stdout.splitlines()
    isa = re.search(r"cpu,isa:(.*)", "\n".join(verbose))
    cnr = re.search(r"CNR:(\S+)", "\n".join(verbose))
    return Libraries(
        **json.loads(last), onednn=isa[1] if isa else "not asked", mkl=cnr[1] if cnr else "not asked"
    )


def variables(processor: Processor, native: Libraries) -> dict[str, str]:
    """What makes the libraries choose as on that processor."""
    absent = [name for name in native.numpy if re.match(processor.without, name)]
    # The last is the one mode that MKL knows on every maker's processors.
    values = (processor.openblas, " ".join(absent), processor.torch, processor.onednn, "COMPATIBLE")
    return dict(zip(_VARIABLES, values, strict=True))


def own_environment() -> dict[str, str]:
    """This process's, without what would make the libraries choose as on another processor."""
    return {name: value for name, value in os.environ.items() if name not in _VARIABLES}


def refusals(processor: Processor, chosen: Libraries) -> list[str]:
    """Which libraries did not choose as they should."""
    wanted = {
        "openblas": (chosen.openblas, [processor.openblas]),
        "numpy": ([name for name in chosen.numpy if re.match(processor.without, name)], []),
        "torch": (chosen.torch, processor.torch),
        "oneDNN": (chosen.onednn[: len(processor.onednn_says)], processor.onednn_says),
        "MKL": (chosen.mkl, "COMPATIBLE"),
    }
    return [f"{name} chose {found}, not {want}" for name, (found, want) in wanted.items() if found != want]


def foreign(native: Libraries) -> Processor:
    """The kind that is most unlike this machine among those whose code others run today."""
    return PROCESSORS[2] if native.torch == "avx512" else PROCESSORS[3]


def _flags() -> set[str]:
    found = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def main() -> int:
    """Run the command; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="tests/cpus.py", description=__doc__.splitlines()[0])
    parser.add_argument("--foreign", action="store_true", help="only the kind most unlike this machine")
    parser.add_argument("--kind", choices=[one.name for one in PROCESSORS], help="only this kind")
    parser.add_argument("tests", nargs="*", help=f"default: {' '.join(FOLDERS)} in tests")
    arguments = parser.parse_args()
    tests = arguments.tests or [str(TESTS / folder) for folder in FOLDERS]

    native = ask(own_environment())
    print(f"this machine: {native}", flush=True)
    chosen = [one for one in PROCESSORS if arguments.kind in (None, one.name)]
    if arguments.foreign:
        chosen = [foreign(native)]
    failed = []
    for processor in chosen:
        if processor.needs not in _flags():
            print(f"{processor.name}: not run, this processor has no {processor.needs}", flush=True)
            continue
        environment = {**own_environment(), **variables(processor, native)}
        libraries = ask(environment)
        print(f"{processor.name}: {libraries}", flush=True)
        if wrong := refusals(processor, libraries):
            print(f"error: {'; '.join(wrong)}", file=sys.stderr, flush=True)
            failed.append(processor.name)
            continue
        workers = str(min(os.cpu_count() or 1, 4))
        cache = ["-o", f"cache_dir={TESTS.parent / '.cache' / 'tests' / processor.name}"]
        command = [sys.executable, "-m", "pytest", "-q", *cache, *tests]
        command += [f"--ignore={TESTS / each}" for each in WITHOUT]
        status = subprocess.run(
            [*command, "-n", workers, "--dist", "worksteal"], env=environment, check=False
        )
        if status.returncode == _TESTS_FAILED:
            # As "make test" does: a machine may stall for a second. What fails is repeated alone, once.
            again = ["--last-failed", "--last-failed-no-failures", "none", "-n", "0"]
            status = subprocess.run([*command, *again], env=environment, check=False)
        if status.returncode:
            failed.append(processor.name)
    if failed:
        print(f"error: failed as on {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
