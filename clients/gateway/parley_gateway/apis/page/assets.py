"""The page's files, read once."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_VERSION_CHARS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    packed: bytes
    """The same, with gzip."""
    media_type: str
    etag: str
    """Names the content, in quotes."""


@dataclass(frozen=True, slots=True)
class Assets:
    """All of them."""

    index: Asset
    files: Mapping[str, Asset]
    """By their path in the folder."""
    version: str
    """Names the content of all."""


def load_assets() -> Assets:
    """Read the folder ``static`` of this package."""
    contents = dict(_walk(files(__package__) / "static"))
    digest = hashlib.sha256()
    for path, content in sorted(contents.items()):
        digest.update(f"{path} {len(content)}\n".encode() + content)
    version = digest.hexdigest()[:_VERSION_CHARS]
    index = contents.pop("index.html").replace(b"{assets}", f"page/{version}".encode())
    return Assets(
        index=_asset("index.html", index),
        files={path: _asset(path, content) for path, content in contents.items()},
        version=version,
    )


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _asset(path: str, content: bytes) -> Asset:
    return Asset(
        content=content,
        packed=gzip.compress(content, mtime=0),
        media_type=_TYPES[path[path.rindex(".") :]],
        etag=f'"{hashlib.sha256(content).hexdigest()[:_VERSION_CHARS]}"',
    )
