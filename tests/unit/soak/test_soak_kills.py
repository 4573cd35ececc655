"""Which processes the soak kills, and what is excused by it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import pytest
from soak import kills
from soak.kills import Kill, Killer

from parley.launcher.processes import Stub

STUBS = [
    Stub(pid=1, model="espeak", instance="espeak_0_0"),
    Stub(pid=2, model="voice_agent", instance="voice_agent_0_0"),
    Stub(pid=3, model="voice_agent", instance="voice_agent_1_0"),
    Stub(pid=4, model="parley_control", instance="parley_control_0_0"),
]


class Server:
    """A record of the supervisor."""

    def stubs(self):
        return STUBS

    def __init__(self):
        self.restarts = {}
        self.state = "serving"

    def record(self):
        return {
            "server": {"state": "serving", "restarts": {}},
            "models": {"espeak": {"state": self.state, "restarts": self.restarts}},
        }


@pytest.fixture
def killed(monkeypatch):
    found = []
    monkeypatch.setattr(kills.os, "kill", lambda pid, number: found.append(pid))
    return found


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(kills, "_LOOK_S", 0.001)
    return Server()


async def test_nothing_is_killed_after_the_last_moment_for_it(server, killed, monkeypatch):
    monkeypatch.setattr(kills, "_RESTORED_S", 0.0)
    killer = Killer(server, random.Random(1), 0.0, time.monotonic())
    killer.until_s = 0.0
    assert await killer.next(lambda _: None) is None
    assert (killed, killer.kills) == ([], [])
    killer.until_s = 3600.0
    assert await killer.next(lambda _: None) is not None


@pytest.mark.usefixtures("killed")
async def test_that_everything_is_killed_once_before_anything_is_killed_again(server, monkeypatch):
    monkeypatch.setattr(kills, "_RESTORED_S", 0.0)
    killer = Killer(server, random.Random(1), 0.0, 0.0)
    found = [(await killer.next(lambda _: None)).pid for _ in range(6)]
    assert sorted(found[:3]) == sorted(found[3:]) == [1, 2, 3]


async def test_that_a_kill_is_over_when_everything_serves_again(server, killed):
    killer = Killer(server, random.Random(1), 0.0, 0.0)
    killer._order = ["espeak"]

    def on_kill(kill):
        assert killed == [1]
        assert kill.restored_s is None
        assert killer.is_disturbed
        server.restarts = {"died": 1}

    kill = await killer.next(on_kill)
    assert kill.restored_s >= kill.at_s
    assert not kill.server_replaced


@pytest.mark.parametrize(
    ("began_s", "ended_s", "excused"), [(0, 99, False), (0, 100, True), (139, 150, True), (141, 150, False)]
)
def test_which_sessions_a_kill_excuses(began_s, ended_s, excused):
    kill = Kill(100.0, "espeak", "espeak_0_0", 1, restored_s=110.0)
    assert kill.overlaps(began_s, ended_s) is excused


def test_that_a_kill_excuses_all_until_it_is_over():
    assert Kill(100.0, "espeak", "espeak_0_0", 1).overlaps(9_000, 9_001)


def test_that_a_gateway_of_the_soak_counts_its_tasks_and_channels():
    program = (
        "import asyncio, gc, json\n"
        "from soak.counted_gateway import count_channels, live_channels, live_tasks\n"
        "count_channels()\n"
        "import grpc.aio\n"
        "async def main():\n"
        "    counts = [live_channels()]\n"
        "    channels = [grpc.aio.insecure_channel('localhost:1') for _ in range(3)]\n"
        "    counts.append(live_channels())\n"
        "    for channel in channels: await channel.close()\n"
        "    del channel, channels\n"
        "    gc.collect()\n"
        "    counts.append(live_channels())\n"
        "    print(json.dumps([counts, live_tasks(asyncio.get_running_loop())]))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd="perf", capture_output=True, check=True)
    assert json.loads(done.stdout) == [[0, 3, 0], {"main": 1}]
