"""A browser, the real server, and the real gateway between them."""

from __future__ import annotations

import sys

import pytest
from local_models import Transcriber
from playwright.sync_api import expect, sync_playwright
from stack import GatewayProcess, Triton
from visits import WAIT_MS, microphone_flags, visit, write_speech

from parley.asr import checkpoint
from parley.launcher.options import ROOT

sys.path[:0] = [str(ROOT / "perf"), str(ROOT / "scripts")]


@pytest.fixture(scope="session")
def browser():
    """The program."""
    from provision.programs import find_browser

    found = find_browser()
    assert found, "no Chromium; make test-browser installs it, or says how"
    return found


@pytest.fixture(scope="session")
def playwright():
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    server = Triton(tmp_path_factory.mktemp("triton"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def gateway(triton, tmp_path_factory):
    process = GatewayProcess(triton.address, tmp_path_factory.mktemp("gateway") / "log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def open_page(playwright, browser, tmp_path):
    """Opens the page of a gateway; ``speech``: what the microphone hears."""

    def open_it(gateway, *speech, flags=None, path="/", host="127.0.0.1", **context):
        if flags is None:
            flags = microphone_flags(write_speech(tmp_path / "microphone.wav", *(speech or (1.0,))))
        url = f"http://{host}:{gateway.port}{path}"
        return visit(playwright, browser, url, tmp_path / "profile", flags=flags, **context)

    return open_it


@pytest.fixture(scope="session")
def transcriber():
    return Transcriber(ROOT / "models" / checkpoint.DEFAULT)
