"""A short load from callers of both kinds, through the real server and a gateway."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from parley.launcher.options import ROOT
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

LOAD_S = 240
WAYS = ("grpc", "websocket")


@pytest.fixture
async def gateway(server):
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    async with running(load_settings(flags=flags)) as one:
        yield one.url


async def make_load(server, gateway, folder, *options):
    """Run ``python -m perf load``; returns its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perf", "load", "--out", folder),
        *("--server", server, "--gateway", gateway, *options),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LOAD_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode, printed.decode()


@pytest.mark.timeout(LOAD_S + 60)
async def test_two_callers_of_each_kind_lose_no_call(server, gateway, tmp_path):
    options = ("--users", "4", "--minutes", "0.35")
    status, printed = await make_load(server.endpoints.grpc, gateway, tmp_path, *options)
    assert status == 0, printed
    rows = json.loads((tmp_path / "load.json").read_text())["rows"]
    measured = {way: [name for name, *_ in rows[way]] for way in WAYS}
    for way in WAYS:
        assert {"connect", "first audio", "microphone", "call"} <= set(measured[way]), (way, printed)
    calls = sum(measured[way].count("call") for way in WAYS)
    assert f"{calls} calls, 0 lost, 0 refused" in printed
    assert (tmp_path / "report.html").stat().st_size > 0


@pytest.mark.timeout(LOAD_S + 60)
async def test_calls_arrive_at_a_rate_and_none_is_lost(server, gateway, tmp_path):
    options = ("--arrivals-per-minute", "30", "--minutes", "0.35")
    status, printed = await make_load(server.endpoints.grpc, gateway, tmp_path, *options)
    assert status == 0, printed
    assert "0 lost, 0 refused" in printed


@pytest.mark.timeout(LOAD_S + 60)
async def test_load_without_an_accepted_call_fails(tmp_path):
    options = ("--users", "2", "--minutes", "0.1")
    status, printed = await make_load("127.0.0.1:9", "http://127.0.0.1:9", tmp_path, *options)
    assert status == 1, printed
    assert " 0 lost" in printed
