"""How measurements are written: tables in a terminal, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table


def make_table(title: str, *head: str, left: int = 1, **style: Any) -> Table:
    """A table without rows; its first ``left`` columns have names, the others figures."""
    table = Table(title=title, title_justify="left", **style)
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
