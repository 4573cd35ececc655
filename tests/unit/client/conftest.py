"""What the tests of the client and its command share."""

import asyncio
import os
import signal
import sys

import numpy as np
import pytest
import soundfile
from fake_models import serving_fake

from parley_stages import open_server


@pytest.fixture(autouse=True, scope="session")
def signals_that_children_hear():
    """Let programs under test hear the signals that they are sent, whatever started the tests.

    A job in the background, or under nohup, ignores these, and hands that on to its children.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def noise_for_people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    (folder / "test-recordings").mkdir()
    noise = np.random.default_rng(0).integers(-3_000, 3_000, 45 * 16_000, np.int16)
    for name in ("two_cities", "beckett"):
        soundfile.write(folder / "test-recordings" / f"{name}.wav", noise, 16_000)
    return folder


@pytest.fixture(autouse=True)
def recordings_of_people(noise_for_people, monkeypatch):
    """Noise in place of the recordings that come with the weights."""
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(noise_for_people))


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of which this program is in the foreground, whatever it is started from: (keys, screen)."""
    keys, screen = os.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    with os.fdopen(screen) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield keys, screen
    os.close(keys)


@pytest.fixture
async def fake():
    """A server whose models answer as the test says."""
    async with asyncio.timeout(20), serving_fake() as models:
        yield models


@pytest.fixture
async def server(fake):
    """A client's connection to it."""
    async with open_server(fake.address) as connection:
        yield connection
