"""A call of the real server is recorded as a whole, and replayed without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from leftovers import ANY_PORTS

from parley.launcher import EmbeddedServer, ServerOptions
from parley.replay.comparison import replay
from parley_client import ResponseDone, connect
from parley_client.cli.commands.run import RECORD_VARIABLE

QUESTION = Path(__file__).parents[1] / "data" / "conversation" / "02-weather.wav"


async def test_recorded_call_is_replayed_without_differences(tmp_path):
    environment = {RECORD_VARIABLE: str(tmp_path / "records")}
    with EmbeddedServer(
        ServerOptions(state_dir=tmp_path / "state", environment=environment, **ANY_PORTS)
    ) as server:
        async with asyncio.timeout(60), connect(server.endpoints.grpc) as call:
            await call.speak(QUESTION)
            async for event in call:
                if isinstance(event, ResponseDone):
                    break
    (file,) = (tmp_path / "records").glob("*.call")
    assert file.stat().st_mode & 0o777 == 0o600
    played = replay(file)
    assert (played.gone, played.new, played.unanswered, played.ended_early) == ([], [], None, "")
    assert played.length_s > 1.0
