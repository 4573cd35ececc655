"""Connections, files of keys, and a clock that a test moves."""

import time

import pytest
from starlette.requests import HTTPConnection

from parley_gateway.security.keys import new_key


def make_connection(
    kind="http", path="/v1/sessions", query="", client="192.0.2.7", host="gateway.example", **headers
):
    """A request, or a WebSocket that is not accepted; underscores in header names are hyphens."""
    lines = [(b"host", host.encode())]
    for name, values in headers.items():
        raw = name.replace("_", "-").encode()
        lines += [
            (raw, value.encode("latin-1")) for value in ([values] if isinstance(values, str) else values)
        ]
    return HTTPConnection(
        {
            "type": kind,
            "scheme": "ws" if kind == "websocket" else "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": lines,
            "client": (client, 50_000) if client else None,
            "server": ("gateway.example", 80),
        }
    )


@pytest.fixture
def connection():
    return make_connection


@pytest.fixture
def keys_file(tmp_path):
    """A file with one key that may do everything but administrate; ``.key`` is the key."""

    class KeysFile:
        path = tmp_path / "keys.toml"

        def __init__(self):
            made = new_key("kiosk", ["agent", "chat", "speak", "transcribe"])
            self.key, self.line = made.secret, made.line
            self.write(self.line)

        def write(self, *lines):
            self.path.write_text("\n".join(lines) + "\n")

        @property
        def id(self):
            return self.line.split(" ")[0]

    return KeysFile()


@pytest.fixture
def clock(monkeypatch):
    """The time of day, moved by a test; rates are counted by it."""

    class Clock:
        # The beginning of an hour, so that windows do not end inside a test.
        now = 1_800_000_000.0

        def __call__(self):
            return self.now

        def advance(self, seconds):
            self.now += seconds

    found = Clock()
    monkeypatch.setattr(time, "time", found)
    return found


@pytest.fixture
def guarded(gateway, keys_file):
    """Starts gateways that know that key, with more settings by section."""

    def start(*, security=None, **parts):
        return gateway(security={"keys_file": str(keys_file.path)} | (security or {}), **parts)

    return start
