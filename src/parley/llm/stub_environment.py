"""What vLLM needs before it is imported inside Triton's Python backend.

The backend embeds an isolated interpreter: it opens text files as ASCII, and ``sys.executable``
names a program that is not Python, while vLLM starts helpers with it.
"""

from __future__ import annotations

import locale
import multiprocessing
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

_DEFAULTS = {
    # Models are local folders; nothing may wait for a network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    # Other models share these cores: let the scheduler place the threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def prepare_environment(
    *,
    engine_in_process: bool,
    threads: int,
    cache_dir: Path,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Set what vLLM reads while it is imported. Values set by the operator stay.

    Args:
        engine_in_process: whether the engine core runs in this process.
        threads: threads for one matrix operation on a CPU; 0 leaves the library's choice.
        cache_dir: folder that survives restarts, for what vLLM finds out once.
        environment: the process environment.
    """
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if engine_in_process else "1"
    environment.setdefault("VLLM_CACHE_ROOT", str(cache_dir))
    if threads:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    _name_python(environment)


def _name_python(environment: MutableMapping[str, str]) -> None:
    """Make ``sys.executable`` the Python whose packages this process uses."""
    if Path(sys.executable or "").name.startswith("python"):
        return
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beside = Path(sys.prefix) / "bin" / name
    python = str(beside) if beside.exists() else shutil.which(name, path=environment.get("PATH"))
    if python:
        sys.executable = python
        multiprocessing.set_executable(python)
