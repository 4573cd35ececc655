"""Every panel's expression in a Prometheus that has scraped a server and a gateway with calls."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from functools import partial

import observe
import pytest
import pytest_asyncio
from gateway_caller import TOOLS, ask_for_the_weather, call, interrupt_a_story
from metrics_page import read_page
from observe import find_program, free_address, render_config

from parley.launcher.options import ROOT
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

RATE_S = 60
SCRAPE_S = 1
FOUND_S = 30.0
"""Until what servers have written is found: fewer than the seconds of the rates."""


def load_boards():
    """Of build/dashboards.py."""
    spec = importlib.util.spec_from_file_location("dashboards", ROOT / "build" / "dashboards.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["dashboards"] = module
    spec.loader.exec_module(module)
    return module.BOARDS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(server, tmp_path_factory):
    """It has seen a call with a tool and an interruption from before its start to after its end."""
    program = await asyncio.create_subprocess_exec(sys.executable, ROOT / "scripts" / "setup", "--prometheus")
    assert await program.wait() == 0
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    async with running(load_settings(flags=flags)) as gateway:
        config = render_config(
            server.endpoints.metrics, gateway.url.removeprefix("http://"), interval=f"{SCRAPE_S}s"
        )
        address = free_address()
        query = partial(ask, address)
        async with observe.prometheus(config, tmp_path_factory.mktemp("prometheus"), address):
            async with asyncio.timeout(FOUND_S):
                while [each["value"][1] for each in query("up")] != ["1", "1"]:  # noqa: ASYNC110
                    await asyncio.sleep(SCRAPE_S)
            async with call(gateway.url, tools=TOOLS) as caller:
                await caller.until("connected")
                await ask_for_the_weather(caller)
                await interrupt_a_story(caller)
                await caller.send("control", action="hangup")
                await caller.until("closed")
            yield query


def ask(address, expression):
    """The series of an expression now, of the Prometheus at an address."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=FOUND_S) as response:
        return json.load(response)["data"]["result"]


def until(condition):
    """Wait until it is so, at most for a while; servers write and Prometheus reads at their own times."""
    end = time.monotonic() + FOUND_S
    while not condition() and time.monotonic() < end:
        time.sleep(SCRAPE_S)


@pytest.mark.asyncio(loop_scope="module")
async def test_every_panel_has_series_and_numbers(prometheus):
    queries = [query for board in load_boards() for panel in board.panels for query in panel.queries]
    assert len(queries) > 40
    empty = []

    def has_numbers(query):
        found = prometheus(query.expression.replace("$__rate_interval", f"{RATE_S}s"))
        return query.rare or any(one["value"][1] != "NaN" for one in found)

    def all_have():
        empty[:] = [query.expression for query in queries if not has_numbers(query)]
        return not empty

    await asyncio.to_thread(until, all_have)  # the gateway goes on in this loop
    assert not empty


@pytest.mark.asyncio(loop_scope="module")
async def test_both_targets_are_scraped_and_the_rules_run(prometheus):
    ratio = "parley:slow_answers:ratio_rate5m"
    assert {(one["metric"]["job"], one["value"][1]) for one in prometheus("up")} == {
        ("parley", "1"),
        ("parley-gateway", "1"),
    }
    await asyncio.to_thread(until, lambda: prometheus(ratio))
    assert prometheus(ratio)
    firing = {one["metric"]["alertname"] for one in prometheus('ALERTS{alertstate="firing"}')}
    assert firing <= {"ParleyModelRestarts", "ParleyServerRestarts"}  # other tests kill models


def test_promtool_accepts_the_names(server, prometheus):
    begins = tuple(
        f"{prefix}{name}" for prefix in ("", "# HELP ", "# TYPE ") for name in ("parley_", "voice_")
    )
    own = [line for line in read_page(server).splitlines() if line.startswith(begins)]
    done = subprocess.run(
        [find_program("promtool"), "check", "metrics"],
        input="\n".join(own) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
