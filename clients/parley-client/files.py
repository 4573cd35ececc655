"""What the wheel holds, taken from the checkout around it.

A hook, because files outside the project can only be forced into a wheel, and an editable installation
would then have copies of them, which hide the checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CLIENTS = Path(__file__).resolve().parents[1]
SHARED = (
    "__init__",
    "chance",
    "chat",
    "checkpoint",
    "errors",
    "field_errors",
    "grpc_messages",
    "inference",
    "languages",
    "names",
    "played_time",
    "protocol",
    "python",
    "timeouts",
    "tls",
)
"""Modules of ``parley``; the ``exclude`` of the checkout's own ``pyproject.toml`` has the same."""


class ClientFiles(BuildHookInterface):  # type: ignore[misc] # hatchling is there while wheels are built only
    """Adds the client's package and the shared modules."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds a wheel; ``version``: ``standard`` or ``editable``."""
        if version == "editable":
            return
        package = CLIENTS / "parley_client"
        files = {path: path.relative_to(CLIENTS) for path in package.rglob("*.py")}
        # What `parley new` copies.
        examples = CLIENTS.parent / "examples" / "agents"
        files |= {path: Path(package.name, "examples", path.name) for path in examples.glob("*.*")}
        source = CLIENTS.parent / "src" / "parley"
        files |= {source / f"{name}.py": Path("parley", f"{name}.py") for name in SHARED}
        build_data["force_include"] |= {str(path): str(name) for path, name in files.items()}
