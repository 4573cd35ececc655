"""How many sessions a server accepts by default: by its profile and the processor cores that it may use."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TABLE = Path(__file__).with_name("sessions.toml")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def default_sessions(profile: str, cores: float) -> int | None:
    """Sessions of each instance of ``voice_agent``, at least one.

    Returns:
        None: the table has no number for the profile.
    """
    row = tomllib.loads(_TABLE.read_text(encoding="utf-8")).get(profile, {})
    if "per_core" not in row:
        return None
    total = min(int(row["most"]), int(cores * row["per_core"]))
    return max(1, total // int(row["instances"]))


def count_cores(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> float:
    """Processor cores that this process may use: those of its affinity, or fewer by its control groups."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for folder in control_groups(groups, own):
        limits += _quota(folder)
    return min(limits)


def control_groups(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> Iterator[Path]:
    """Folders of this process's control groups (version 2 and 1) and of those above them."""
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            folder = groups if not controllers else groups / controllers
            # A container sees its own group as the root, whatever the path says.
            for part in (Path("/"), *Path(path).parents, Path(path)):
                yield folder / part.relative_to("/")


def _quota(folder: Path) -> list[float]:
    """The limit of one control group (version 2 or 1), in cores; empty: there is none."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        return [int(quota) / int(period)]
    with suppress(OSError, ValueError):
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return [int(quota) / int(period)] if int(quota) > 0 else []
    return []
