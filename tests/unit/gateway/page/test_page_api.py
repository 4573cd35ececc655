"""How the page is served: its policy, its caching, and nothing that comes from elsewhere."""

from __future__ import annotations

import gzip
import importlib.util
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from parley.launcher.options import ROOT
from parley_gateway.apis.page import load_assets, routes
from parley_gateway.failures import add_error_handlers
from parley_gateway.metrics import Metrics


@pytest.fixture(scope="module")
def assets():
    return load_assets()


@pytest.fixture
def client():
    app = FastAPI()
    add_error_handlers(app, Metrics(), None)  # no id of a gateway is in these paths
    app.include_router(routes(None))
    with TestClient(app) as client:
        yield client


def test_all_files_of_the_page_exist(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    files = [path for path in named if path.startswith("page/")]
    assert len(files) >= 5
    documents = {"openapi.json", "asyncapi.json", "readyz", "v1/agent"}  # of other APIs
    assert set(named) - set(files) == documents
    for path in files:
        answer = client.get(f"/{path}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_every_module_that_a_module_imports_is_there(assets):
    for path, asset in assets.files.items():
        folder = path.rpartition("/")[0]
        for name in re.findall(r"from '([^']+)'", asset.content.decode()):
            parts = folder.split("/") if folder else []
            for part in name.split("/"):
                if part == "..":
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            assert "/".join(parts) in assets.files, f"{path} imports {name}"


def test_page_has_no_foreign_or_inline_code(assets):
    page = assets.index.content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?://", page)
    for path, asset in assets.files.items():
        found = re.findall(r"https?://[^\s'\"]+", asset.content.decode())
        assert [url for url in found if url != "http://www.w3.org/2000/svg"] == [], path
        assert b"innerHTML" not in asset.content, path


def test_the_policy_lets_nothing_else_in(client):
    policy = client.get("/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}


def test_the_page_is_asked_for_again_and_its_files_never(client):
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


def test_files_are_packed_for_those_who_can_unpack_them(client, assets):
    path = f"/page/{assets.version}/app.js"
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(assets.files["app.js"].packed) == plain.content


@pytest.mark.parametrize(
    "path", ["/page/0000/app.js", "/page/{}/none.js", "/page/{}/../assets.py", "/page/{}/"]
)
def test_other_files_are_not_found(client, assets, path):
    answer = client.get(path.format(assets.version))
    assert answer.status_code == 404
    if "error" in answer.json():
        assert answer.json()["error"]["code"] == "not_found"


def test_the_page_has_the_stages_of_parley_trace():
    found = importlib.util.spec_from_file_location("page_stages", ROOT / "build" / "page_stages.py")
    page_stages = importlib.util.module_from_spec(found)
    found.loader.exec_module(page_stages)
    assert page_stages.MODULE.read_text() == page_stages.stages_module(), "run build/page_stages.py"
