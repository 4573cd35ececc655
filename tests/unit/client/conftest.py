"""What the tests of the client and its command share."""

import os
import signal
import sys

import pytest


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


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of which this program is in the foreground, whatever it is started from: (keys, screen)."""
    keys, screen = os.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    with os.fdopen(screen) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield keys, screen
    os.close(keys)
