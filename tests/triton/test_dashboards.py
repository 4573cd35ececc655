"""Every panel's expression in a Prometheus that has scraped a server and a gateway with calls."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys

import pytest_asyncio
from gateway_caller import TOOLS, ask_for_the_weather, call, interrupt_a_story
from metrics_page import read_page
from observe import Prometheus, find_program, free_address, render_config

from parley.launcher.options import ROOT
from parley.triton.observability import PUBLISH_S
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

RATE_S = 60
SCRAPE_S = 1


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
        with Prometheus(config, tmp_path_factory.mktemp("prometheus"), free_address()) as one:
            await asyncio.sleep(3 * SCRAPE_S)
            async with call(gateway.url, tools=TOOLS) as caller:
                await caller.until("connected")
                await ask_for_the_weather(caller)
                await interrupt_a_story(caller)
                await caller.send("control", action="hangup")
                await caller.until("closed")
            await asyncio.sleep(PUBLISH_S + 2 * SCRAPE_S)
            yield one


def test_every_panel_has_series_and_numbers(prometheus):
    queries = [query for board in load_boards() for panel in board.panels for query in panel.queries]
    assert len(queries) > 40
    empty = []
    for query in queries:
        found = prometheus.query(query.expression.replace("$__rate_interval", f"{RATE_S}s"))
        if not query.rare and not [one for one in found if one["value"][1] != "NaN"]:
            empty.append(query.expression)
    assert not empty


def test_both_targets_are_scraped_and_the_rules_run(prometheus):
    assert {(one["metric"]["job"], one["value"][1]) for one in prometheus.query("up")} == {
        ("parley", "1"),
        ("parley-gateway", "1"),
    }
    assert prometheus.query("parley:slow_answers:ratio_rate5m")
    firing = {one["metric"]["alertname"] for one in prometheus.query('ALERTS{alertstate="firing"}')}
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
