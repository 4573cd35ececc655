"""The page on which a browser talks to the agent.

The files of ``static`` are served below a path with a hash of their content, so that a browser may cache them
for ever and never mixes two versions. The page's policy forbids other origins and inline scripts.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from parley_gateway.errors import NotFoundError
from parley_gateway.gateway import Gateway

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
    """The content with gzip."""
    media_type: str
    etag: str
    """A hash of the content, in quotes."""


@dataclass(frozen=True, slots=True)
class Assets:
    """All files."""

    index: Asset
    files: Mapping[str, Asset]
    """By their path in the folder."""
    version: str
    """A hash of the content of all files."""


@cache
def load_assets() -> Assets:
    """Read the folder ``static`` of this package."""
    folder = Path(__file__).parent / "static"
    found = (path for path in folder.rglob("*") if path.is_file())
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
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


def _asset(path: str, content: bytes) -> Asset:
    return Asset(
        content=content,
        packed=gzip.compress(content, mtime=0),
        media_type=_TYPES[path[path.rindex(".") :]],
        etag=f'"{hashlib.sha256(content).hexdigest()[:_VERSION_CHARS]}"',
    )


_FOREVER = "public, max-age=31536000, immutable"
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    # A recorded call: fetched with the key, which an address must not have.
    "media-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Vary": "Accept-Encoding",
}


def routes(_: Gateway) -> APIRouter:
    """``/``, and the page's files below ``/page``."""
    assets = load_assets()
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, assets.index, "no-cache")

    @router.get("/page/{version}/{path:path}")
    async def file(request: Request, version: str, path: str) -> Response:
        if version != assets.version or path not in assets.files:
            raise NotFoundError("the page has no such file; load it again")
        return _answer(request, assets.files[path], _FOREVER)

    return router


def _answer(request: Request, asset: Asset, caching: str) -> Response:
    headers = {**_HEADERS, "ETag": asset.etag, "Cache-Control": caching}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)
