"""Security headers for browsers."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from parley_gateway.security.origins import Origins, add_headers


def client(*origins, encrypted=False):
    async def plain(_):
        return PlainTextResponse("x")

    async def kept(_):
        return PlainTextResponse(
            "x", headers={"Cache-Control": "max-age=60", "Content-Security-Policy": "script-src 'self'"}
        )

    async def denied(websocket):
        await websocket.send_denial_response(PlainTextResponse("no", 401))

    app = Starlette(
        routes=[
            Route("/", plain, methods=["GET", "POST"]),
            Route("/kept", kept),
            WebSocketRoute("/ws", denied),
        ]
    )
    add_headers(app, Origins(origins), encrypted=encrypted)
    return TestClient(app, base_url="http://gateway.example:8080")


def test_every_answer_makes_browsers_careful():
    with client() as http:
        headers = http.get("/").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "microphone=(self)" in headers["permissions-policy"]
        assert "server" not in headers
        assert "strict-transport-security" not in headers
        assert "access-control-allow-origin" not in headers
        assert http.get("/nowhere").headers["x-content-type-options"] == "nosniff"
        assert http.get("/kept").headers["cache-control"] == "max-age=60"


def test_a_refused_websocket_gets_them_too():
    with client() as http, pytest.raises(WebSocketDenialResponse) as caught, http.websocket_connect("/ws"):
        pass
    assert caught.value.headers["content-security-policy"]


def test_an_answer_is_never_a_page_unless_it_says_how():
    with client() as http:
        assert http.get("/").headers["content-security-policy"].startswith("default-src 'none'")
        assert http.get("/kept").headers["content-security-policy"] == "script-src 'self'"


def test_listed_pages_may_read_answers_and_others_not():
    with client("https://app.example") as http:
        listed = http.get("/", headers={"Origin": "https://app.example"})
        other = http.get("/", headers={"Origin": "https://evil.example"})
        assert listed.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in listed.headers
        assert "access-control-allow-origin" not in other.headers
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = http.options("/", headers={"Origin": "https://app.example", **asked})
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert preflight.headers["x-content-type-options"] == "nosniff"
