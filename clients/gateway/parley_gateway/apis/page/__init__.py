"""The page: talk to the agent in a browser.

Its files are served as they lie in ``static``, below an address that names their content: so a
browser may keep them for ever, and never mixes two versions. Everything comes from the gateway itself,
and the page's policy lets it load nothing else, run nothing that is written into the document, and talk to
nobody else.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from parley_gateway.apis.page.assets import Asset, load_assets
from parley_gateway.errors import NotFoundError
from parley_gateway.gateway import Gateway

_FOREVER = "public, max-age=31536000, immutable"
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
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
