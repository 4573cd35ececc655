"""Tools are tested on machines of all kinds."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(autouse=True)
def localhost_is_known(monkeypatch):
    """Some bare machines have no ``/etc/hosts``."""
    real = socket.getaddrinfo

    def look_up(host, port, *args, **kwargs):
        return real("127.0.0.1" if host in ("localhost", b"localhost") else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
