"""What the tests of the client and its command share."""

import signal

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
