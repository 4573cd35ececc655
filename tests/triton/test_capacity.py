"""``parley capacity`` and ``make bench-stages`` with the real server and a gateway."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from parley.launcher.options import ROOT
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

LIMIT_S = 240
CLIPS = ROOT / "tests/data/conversation"
# All callers speak in real time: a few short words, with short answers.
WORDS = ("01-hello.wav", "13-thank-you.wav")


@pytest.fixture
async def gateway(server):
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    async with running(load_settings(flags=flags)) as one:
        yield one.url


async def run(*arguments):
    """A program's exit status and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, printed.decode()


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("way", ["server", "gateway"])
async def test_calls_are_stepped_up_to_the_limit(server, gateway, tmp_path, way):
    address = server.endpoints.grpc if way == "server" else gateway
    path, script = tmp_path / "capacity.json", tmp_path / "script.toml"
    script.write_text("".join(f'[[turn]]\nsay = "{CLIPS / name}"\npause_ms = 100\n' for name in WORDS))
    options = ("--profile", "tiny", "--script", str(script), "--json", str(path))
    # So patient that a busy machine holds it; the few turns are too few to be sure.
    options += ("--p95-ms", "15000", "--turns", "1", "--most", "2")
    status, printed = await run("-m", "parley_client", "capacity", f"--{way}", address, *options)
    assert status in (0, 1), printed
    measured = json.loads(path.read_text())
    assert measured["complete"], printed
    first = measured["levels"][0]
    assert (first["calls"], first["refused"], first["lost"]) == (1, [], []), printed
    assert first["turns"] >= 2
    assert first["p50_ms"], printed


@pytest.mark.timeout(LIMIT_S + 60)
async def test_every_stage_is_measured_by_grpc(server, tmp_path):
    path = tmp_path / "stages.json"
    url = f"url={server.endpoints.grpc}"
    wanted = [f"parley-{stage},{url}" for stage in ("recognizer", "recording", "llm", "voice", "call")]
    endpoints = [part for one in wanted for part in ("--endpoint", one)]
    options = ("--no-own", "--profile", "tiny", "--concurrency", "1", "--turns", "3")
    options += ("--json", str(path))
    status, printed = await run("-m", "perf", "bench-stages", *options, *endpoints)
    assert status == 0, printed
    levels = json.loads(path.read_text())["levels"]
    assert [one["turns"] for one in levels] == [3] * len(wanted)
    measured = {name for one in levels for name in one["figures"]}
    assert {
        "first_partial_ms",
        "final_ms",
        "first_token_ms",
        "first_audible_ms",
        "call_first_audio_ms",
    } <= measured
