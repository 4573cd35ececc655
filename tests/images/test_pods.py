"""The chart's pods, as a kubelet would run and end them: probes, a call, preStop, SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from containers import ROOT, Network
from pods import Pod, cpu_values, render

CLIP = ROOT / "tests/data/conversation"
LIMIT_S = 60.0
_HOLD = """
import asyncio, sys
from parley.errors import ParleyError
from parley_client import connect

async def main():
    try:
        async with connect("127.0.0.1:8001", resume=False) as call:
            print("open", flush=True)
            events = asyncio.create_task(read(call))
            await asyncio.to_thread(sys.stdin.readline)
            print("over" if events.done() else "held", flush=True)
            events.cancel()
    except ParleyError as error:
        # The client tries again, and says at last what the server has answered.
        print(getattr(error.__cause__, "code", error.code), flush=True)

async def read(call):
    async for event in call:
        pass

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def network(root_on_debian):
    """Of these pods alone: other containers have the same ports."""
    with Network(f"parley-pods-{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def objects():
    """The CPU chart: the profile tiny, whose weights are in the image, and the gateway without a balancer."""
    local = {"name": "PARLEY_GATEWAY_SERVERS_ADDRESSES", "value": "127.0.0.1:8001"}
    return render(
        f"test{os.getpid()}",
        cpu_values(gateway={"replicas": 1, "allowAnonymous": True, "preStopSeconds": 2, "env": [local]}),
    )


@pytest.fixture(scope="module")
def worker(images, network, objects, tmp_path_factory):
    with Pod(network, tmp_path_factory.mktemp("worker-pod"), objects, "worker") as pod:
        pod.wait_until_started()
        yield pod


@pytest.fixture(scope="module")
def gateway(worker, network, objects, tmp_path_factory):
    with Pod(network, tmp_path_factory.mktemp("gateway-pod"), objects, "gateway") as pod:
        pod.wait_until_started()
        yield pod


class Caller:
    """Holds a call at the worker, in a process in the pod's network."""

    def __init__(self, network):
        self._process = subprocess.Popen(
            network.command(sys.executable, "-c", _HOLD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = self._process.stdout.readline().strip()

    def hang_up(self):
        """What became of the call: held, or over before."""
        said, _ = self._process.communicate("\n", timeout=LIMIT_S)
        assert self._process.returncode == 0
        return said.strip()


def try_to_call(network):
    """How a call that hangs up at once was answered: open, or a code."""
    caller = Caller(network)
    caller.hang_up()
    return caller.said


def test_pods_run_as_the_chart_wants_it(worker, gateway):
    for pod in (worker, gateway):
        found = pod.inspect()
        assert found["Config"]["User"].startswith(str(pod.spec["securityContext"]["runAsUser"]))
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert found["EffectiveCaps"] in ([], None)
        assert found["HostConfig"]["Memory"] == int(pod.container["resources"]["limits"]["memory"][:-2]) << 30
        status, said = pod.execute(["sh", "-c", "id -u; touch /opt/parley/x"])
        assert said.startswith(str(pod.spec["securityContext"]["runAsUser"]))
        assert status != 0, "the root is read-only"


def test_a_call_goes_through_both_pods(gateway, network, tmp_path):
    clip = next(CLIP.glob("*-weather.wav"))
    environment = {**os.environ, "PARLEY_URL": "http://127.0.0.1:8080"}
    said = network.run(
        sys.executable, ROOT / "examples/gateway_stream.py", clip, env=environment, cwd=tmp_path
    )
    assert "Paris" in said.partition("agent:")[2]


def test_a_worker_that_is_deleted_keeps_its_call_and_takes_no_other(worker, gateway, network):
    caller = Caller(network)
    assert caller.said == "open"
    drain = worker.begin_end()
    end = time.monotonic() + LIMIT_S
    while (said := try_to_call(network)) == "open":
        assert time.monotonic() < end
        time.sleep(0.5)
    assert said == "shutting_down"
    assert drain.poll() is None, "it waits for the call"
    assert caller.hang_up() == "held"
    said, _ = drain.communicate(timeout=LIMIT_S)
    assert drain.returncode == 0, said
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < worker.spec["terminationGracePeriodSeconds"], "it was not killed"


def test_a_gateway_ends_within_its_grace(gateway):
    """The last test of this file: its pods are gone."""
    waited = gateway.begin_end()
    said, _ = waited.communicate(timeout=LIMIT_S)
    assert waited.returncode == 0, said
    assert gateway.stop() == 0
