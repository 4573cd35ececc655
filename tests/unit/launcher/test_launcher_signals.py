"""What the launcher's command does when it is told to end."""

from __future__ import annotations

import signal

import pytest

from parley.launcher.__main__ import Console, stop_on_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Server:
    def __init__(self):
        self.told = []

    def request_stop(self):
        self.told.append("stop")

    def kill(self):
        self.told.append("kill")


@pytest.fixture
def server():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Server()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_and_the_second_kills(server, number):
    stop_on_signals(server, Console())
    signal.raise_signal(number)
    assert server.told == ["stop"]
    signal.raise_signal(signal.SIGTERM)
    assert server.told == ["stop", "kill"]


def test_a_server_started_by_nohup_survives_its_terminal(server):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_on_signals(server, Console())
    signal.raise_signal(signal.SIGHUP)
    assert server.told == []
