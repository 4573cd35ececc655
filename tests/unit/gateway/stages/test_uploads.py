"""Recordings as they are received: bounds of forms and bodies, and what happens when they break off."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from recordings_for_tests import TONE, wav

from parley.asr.messages import TranscribeReply

PATHS = ("/v1/audio/transcriptions", "/v1/listen")
B = b"----b"
TYPE = {"content-type": "multipart/form-data; boundary=" + B.decode()}


def part(name, value, *, filename=None, headers=b""):
    file = f'; filename="{filename}"'.encode() if filename else b""
    named = b"--" + B + b'\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + file + b"\r\n"
    return named + headers + b"\r\n" + value + b"\r\n"


def form(*parts, end=b"--" + B + b"--\r\n"):
    return b"".join(parts) + end


FILE = part("file", wav(), filename="a.wav")
MODEL = part("model", b"whisper-1")


async def send(gateway, body, headers=TYPE):
    gateway.models.transcript = TranscribeReply(text="hello", confidence=0.9, duration_ms=1_000)
    return await gateway.http.post(PATHS[0], content=body, headers=headers)


async def test_a_form_is_read_in_any_pieces(gateway):
    body = form(MODEL, FILE)
    for size in (1_000, 4_096, 65_537, len(body)):
        pieces = [body[at : at + size] for at in range(0, len(body), size)]

        async def content(pieces=pieces):
            for piece in pieces:
                yield piece

        assert (await send(gateway, content())).status_code == 200
        assert np.array_equal(gateway.models.transcribed[-1][0], TONE)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (form(FILE, FILE), "more than one file"),
        (form(*[part(f"keywords{number}", b"a") for number in range(257)], FILE), "more than 256 fields"),
        (form(part("prompt", bytes(65_537)), FILE), "more than 65536 bytes"),
        (form(*[part("prompt", bytes(1_000))] * 66, FILE), "more than 65536 bytes"),
        (form(part("model", b"", headers=b"X: " + b"a" * 5_000 + b"\r\n")), "header"),
        (form(part("model", b"", headers=b"X: a\r\n" * 1_000)), "header"),
        (form(MODEL, FILE, end=b""), "ends before its last boundary"),
        (form(b"--" + B + b"\r\n\r\n\r\n"), "no name"),
        (b"nonsense", "cannot be read"),
        (b"", "ends before"),
    ],
)
async def test_forms_are_bounded_and_whole(gateway, body, said):
    answer = await send(gateway, body)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (400, True), answer.text
    assert gateway.gateway.spool.reserved == 0


async def test_boundaries_are_bounded(gateway):
    for boundary in ("", "a" * 5_000):
        headers = {"content-type": "multipart/form-data; boundary=" + boundary}
        assert (await send(gateway, form(FILE), headers)).status_code == 400


@pytest.mark.parametrize("path", PATHS)
async def test_upload_without_room_gets_retry_after(start, path):
    gateway = await start(uploads={"disk_bytes": 100_000, "retry_after_s": 7})
    large = form(MODEL, part("file", wav(np.zeros(100_000, np.int16)), filename="a.wav"))

    async def unannounced():
        for at in range(0, len(large), 10_000):
            yield large[at : at + 10_000]

    for content in (large, unannounced()):
        answer = await gateway.http.post(path, content=content, headers=TYPE)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert gateway.gateway.spool.reserved == 0
    refused = (await gateway.http.get("/metrics")).text
    assert 'parley_gateway_refusals_total{code="uploads_full"} 2.0' in refused


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_leaves_nothing(gateway, path):
    may_go_on = asyncio.Event()

    async def content():
        yield form(MODEL, FILE, end=b"")
        yield b"a" * 500_000
        await may_go_on.wait()

    sending = asyncio.create_task(gateway.http.post(path, content=content(), headers=TYPE))
    spool = gateway.gateway.spool
    await until(lambda: spool.reserved > 500_000)
    sending.cancel()
    await asyncio.wait([sending])
    await until(lambda: spool.reserved == 0)


def decoders():
    """Command lines of the decoders that run."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return [command for command in found if b"decoder_process" in command]


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_ends_its_decoder(gateway, path):
    await gateway.gateway.decoders.start()
    slow = wav()[:12] + (b"junk" + bytes(4)) * 4_000_000  # chunks take seconds
    body = form(MODEL, part("file", slow, filename="a.wav")) if path == PATHS[0] else slow
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        sending = asyncio.create_task(http.post(path, content=body, headers=TYPE))
        await until(decoders)
        sending.cancel()
        await asyncio.wait([sending])
    await until(lambda: not decoders())
    await until(lambda: gateway.gateway.spool.reserved == 0)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event reports the change
            await asyncio.sleep(0.005)


def resident():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1_024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize("path", PATHS)
async def test_many_uploads_take_little_memory(gateway, path):
    """Sixteen bodies of 8 MiB that are all there but their last byte."""
    piece, number = bytes(1 << 20), 16
    may_end = asyncio.Event()

    async def content():
        yield b"--" + B + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(8):
            yield piece
        await may_end.wait()
        yield b"."

    before = resident()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        sending = [
            asyncio.create_task(http.post(path, content=content(), headers=TYPE)) for _ in range(number)
        ]
        await until(lambda: gateway.gateway.spool.reserved >= number * 8 << 20)
        assert resident() - before < 96 << 20  # of 128 MiB; beside them the allocator has some of its own
        may_end.set()
        assert {(await one).status_code for one in sending} == {400}
    assert gateway.gateway.spool.reserved == 0
