"""A telephone call by SIP and the server: speech, an answer, and silence when the caller interrupts."""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np
import soundfile

from parley.launcher.options import ROOT
from parley_gateway.audio.polyphase import LiveResampler

sys.path.append(str(ROOT / "tests/unit/gateway/sip"))

from telephone import HOST, Telephone, free_port, until

RATE = 8_000
FRAME = 160


def frames_of(name):
    """A recording in pieces of 20 ms."""
    audio, rate = soundfile.read(ROOT / "tests/data/conversation" / name, dtype="int16")
    telephone = LiveResampler(rate, RATE).push(audio)
    telephone = np.pad(telephone, (0, -len(telephone) % FRAME))
    return list(telephone.reshape(-1, FRAME))


def loud(phone):
    return sum(loudness > 500 for loudness in phone.heard)


async def test_a_telephone_call(server, tmp_path):
    url = f"sip:{HOST}:{free_port()}"
    (tmp_path / "sip.toml").write_text(f'[listen]\nport = 0\n[sip]\nlisten = "{url}"\n')
    command = (sys.executable, "-m", "parley_client", "gateway", "--server", server.endpoints.grpc)
    process = await asyncio.create_subprocess_exec(
        *command,
        "--config",
        str(tmp_path / "sip.toml"),
        "sip",
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        async with asyncio.timeout(60):
            while not (await process.stdout.readline()).startswith(b"ready "):
                pass
        async with Telephone().on() as phone:
            phone.call(f"sip:agent@{url.removeprefix('sip:')}")
            await phone.state("ready")
            phone.says = frames_of("01-hello.wav")
            await until(lambda: loud(phone) > 30, 30)
            await phone.hears_nothing(75, 30)

            heard = loud(phone)
            phone.says = frames_of("06-story.wav")
            await until(lambda: loud(phone) > heard + 60, 40)
            phone.says = frames_of("07-stop.wav")
            spoken_s = len(phone.says) * 0.02
            await phone.hears_nothing(20, spoken_s + 5)

            phone.press("1")
            phone.hang_up()
            await phone.state("terminated")
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
