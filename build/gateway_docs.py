"""Writes the table of the gateway's settings into docs/gateway.md; run it after changing a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from parley_gateway.schemas import field_docs
from parley_gateway.settings import Settings

DOCS = Path(__file__).parents[1] / "docs" / "gateway.md"
_BEGIN = "<!-- settings: written by build/gateway_docs.py -->\n"
_END = "<!-- end of settings -->\n"


def settings_table() -> str:
    """All settings, one row each, with their defaults."""
    rows = ["| setting | default | |", "|---|---|---|"]
    for part in msgspec.structs.fields(Settings):
        docs = field_docs(part.type)
        for field in msgspec.structs.fields(part.type):
            text = docs.get(field.name, "").replace("|", "\\|").replace("``", "`")
            rows.append(f"| `{part.name}.{field.name}` | {_shown(field)} | {text} |")
    return "\n".join(rows) + "\n"


def with_table(document: str) -> str:
    """The document with the table as it is now."""
    before, rest = document.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n{settings_table()}\n{_END}{after}"


def _shown(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else ""
    if value in ("", (), [], {}):
        return ""
    if isinstance(value, tuple | list):
        return "`" + ", ".join(map(str, value)) + "`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
