"""Processes that decode recordings, and what ends them."""

import asyncio
import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recordings_for_tests import pages

from parley.errors import InvalidAudioError
from parley_gateway.audio import decoder_process, decoders
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.audio.decoders import Decoders, DecoderSettings
from parley_gateway.audio.recordings import Container, raw_container, read_plain, stream_of
from parley_gateway.errors import DecodersBusyError, GatewaySettingsError, UploadsFullError
from parley_gateway.metrics import Metrics
from parley_gateway.spool import Spool, SpooledFile, UploadSettings

DEADLINE_S = 20.0
WAV = Container("wav")
FLAC = Container("flac")


def wav(samples, rate=16_000, *, tag=1, channels=1, bits=16):
    data = np.asarray(samples, "<i2").tobytes()
    align = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align, align, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


# Floats are not plain: they take a process.
TONE = (0.25 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)).astype("<f4")
FLOATS = wav(TONE.view("<i2"), tag=3, bits=32)


class Decoding:
    """Decoders, what they are given, and their processes."""

    def __init__(self, decoders, spool):
        self.decoders = decoders
        self.spool = spool

    async def decode(self, data=FLOATS, container=WAV, max_s=60.0, owner=None):
        with self.spool.open(owner) as recording, self.spool.open(owner) as output:
            await recording.append(data)
            await recording.finish()
            await self.decoders.decode(recording, container, output, max_s)
            return (await output.samples()).copy()

    async def stick(self, owner=None):
        """Decode a recording that never comes."""
        source, keeps_open = os.pipe()
        try:
            with Stuck(self.spool, source, owner) as recording, self.spool.open() as output:
                await self.decoders.decode(recording, FLAC, output, 60.0)
        finally:
            os.close(keeps_open)

    @property
    def processes(self):
        return children(os.getpid())


class Stuck(SpooledFile):
    def __init__(self, spool, descriptor, owner=None):
        super().__init__(spool, owner)
        self._descriptor = descriptor


def children(process):
    """The decoders among the children of a process that have begun to decode."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(one) for one in found if is_limited(int(one))]


def is_limited(process):
    try:
        return "Max open files            0" in Path(f"/proc/{process}/limits").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_alive(process):
    """Whether a process runs; one whose end was not collected yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


@pytest.fixture
async def begin():
    started = []

    def make(**settings):
        metrics = Metrics()
        spool = Spool(UploadSettings(), metrics.uploads)
        started.append(Decoders(DecoderSettings(**settings), spool, metrics.recordings))
        return Decoding(started[-1], spool)

    yield make
    for one in started:
        await one.aclose()


async def stuck(decoding, number=1):
    """Tasks with recordings that never come, each in its process."""
    tasks = [asyncio.create_task(decoding.stick()) for _ in range(number)]
    await until(lambda: len(decoding.processes) >= number)
    return tasks


async def test_a_recording_is_decoded(begin):
    decoding = begin()
    await decoding.decoders.start()
    samples = await decoding.decode()
    assert len(samples) == 16_000
    assert np.abs(samples - TONE * 32_768).max() < 2
    assert decoding.spool.reserved == 0


async def test_a_cancelled_request_ends_its_process(begin):
    decoding = begin(processes=1)
    (task,) = await stuck(decoding)
    (process,) = decoding.processes
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(process)
    assert decoding.spool.reserved == 0
    assert len(await decoding.decode()) == 16_000  # its place is free


async def test_a_decoder_inherits_nothing_and_can_open_nothing(begin, monkeypatch):
    monkeypatch.setenv("PARLEY_GATEWAY_SECRET", "sesame")
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        decoding = begin(process_bytes=100_000_000, cpu_s=7)
        (task,) = await stuck(decoding)
        proc = Path(f"/proc/{decoding.processes[0]}")
        limits = {
            line[:26].strip(): line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()
        }
        assert b"sesame" not in (proc / "environ").read_bytes()
        assert len(list((proc / "fd").iterdir())) == 4  # input, output, errors, result
        assert limits["Max processes"] == limits["Max core file size"] == limits["Max open files"] == "0"
        assert limits["Max cpu time"] == "7"
        assert int(limits["Max file size"]) == 2 * 16_000 * 62
        assert int(limits["Max address space"]) < 100_000_000 + 1_000_000_000
    finally:
        os.close(inherited)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param("os.pipe2", OSError(errno.EMFILE, "Too many open files"), id="descriptors"),
        # asyncio waits for each process in a thread.
        pytest.param("asyncio.create_subprocess_exec", RuntimeError("can't start new thread"), id="threads"),
    ],
)
async def test_decode_without_descriptors_or_threads_can_be_retried(begin, monkeypatch, call, error):
    def refuse(*_, **__):
        raise error

    one = begin()
    with monkeypatch.context() as patch:
        patch.setattr(call, refuse)
        with pytest.raises(DecodersBusyError, match=str(error.args[-1])):
            await one.decode()
    assert len(await one.decode()) == 16_000
    assert one.spool.reserved == 0


async def test_a_killed_decoder_costs_its_recording_alone(begin):
    decoding = begin()
    first, second = await stuck(decoding, 2)
    os.kill(decoding.processes[0], signal.SIGKILL)
    done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    (lost,) = done
    assert isinstance(lost.exception(), DecodersBusyError)
    assert lost.exception().retryable
    assert len(await decoding.decode()) == 16_000


@pytest.mark.parametrize("turns", [1, 5, 50])
async def test_gateway_that_ends_while_decoders_start_leaves_nothing(begin, turns):
    decoding = begin()
    task = asyncio.create_task(decoding.decode())
    await until(lambda: decoding.decoders._running)
    for _ in range(turns):
        await asyncio.sleep(0)
    await decoding.decoders.aclose()
    with pytest.raises(DecodersBusyError, match="the gateway ends"):
        await task
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    assert not decoding.processes


async def test_gateway_that_ends_starts_no_process_for_what_waits(begin):
    decoding = begin(processes=1, waiting=1)
    (task,) = await stuck(decoding)
    waiting = asyncio.create_task(decoding.decode())
    await until(lambda: decoding.decoders._waiting.taken == 1)
    await decoding.decoders.aclose()
    with pytest.raises(DecodersBusyError, match="the gateway ends"):
        await waiting
    await asyncio.gather(task, return_exceptions=True)


async def test_processes_end_with_the_gateway():
    code = f"""
import asyncio, sys
sys.path[:0] = {[str(one) for one in Path(__file__).parents[:2]]}
from test_decoders import *
async def main():
    metrics = Metrics()
    spool = Spool(UploadSettings(), metrics.uploads)
    decoding = Decoding(Decoders(DecoderSettings(), spool, metrics.recordings), spool)
    await stuck(decoding, 2)
    print(*decoding.processes, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    pids = [int(one) for one in (await gateway.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    gateway.kill()
    await gateway.wait()
    await until(lambda: not any(map(is_alive, pids)))


async def test_hanging_process_is_ended_and_can_be_retried(begin):
    decoding = begin(wall_s=0.2)
    with pytest.raises(DecodersBusyError, match="longer than"):
        await decoding.stick()


async def test_processor_time_is_bounded(begin):
    chunks = wav([])[:12] + (b"junk" + bytes(4)) * 4_000_000
    decoding = begin(cpu_s=1)
    with pytest.raises(InvalidAudioError, match="processor time"):
        await decoding.decode(chunks)


async def test_memory_is_bounded(begin):
    tag = b"ID3\x03\x00\x00" + bytes(64_000_000 >> shift & 0x7F for shift in (21, 14, 7, 0))
    cover = (
        b"APIC" + struct.pack(">I", 63_000_000) + bytes(2) + b"\x00image/gif\x00\x03\x00" + bytes(63_000_000)
    )
    decoding = begin(process_bytes=30_000_000)
    with pytest.raises(InvalidAudioError):
        await decoding.decode(tag + cover, Container("mp3"))
    assert len(await decoding.decode()) == 16_000


async def test_waiting_requests_are_bounded(begin):
    decoding = begin(processes=1, waiting=1)
    (task,) = await stuck(decoding)
    waiting = asyncio.create_task(decoding.decode())
    await until(lambda: decoding.decoders._waiting.taken == 1)
    with pytest.raises(DecodersBusyError, match="wait for a decoder already") as caught:
        await decoding.decode()
    assert caught.value.retry_after_s
    task.cancel()
    assert len(await waiting) == 16_000


async def test_waits_are_bounded_in_time(begin):
    decoding = begin(processes=1, wait_s=0.1)
    (task,) = await stuck(decoding)
    with pytest.raises(DecodersBusyError, match="no decoder became free"):
        await decoding.decode()
    task.cancel()
    await asyncio.wait([task])
    assert len(await decoding.decode()) == 16_000


async def test_owner_leaves_a_decoder_to_others(begin):
    decoding = begin(processes=4, waiting=8)
    tasks = [asyncio.create_task(decoding.stick("one")) for _ in range(9)]
    await until(lambda: len(decoding.processes) == 3)
    await until(lambda: decoding.decoders._waiting.taken == 6)
    with pytest.raises(DecodersBusyError, match="wait for a decoder already"):
        await decoding.decode(owner="one")
    assert len(await decoding.decode(owner="other")) == 16_000
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(await decoding.decode(owner="one")) == 16_000


async def test_samples_have_room_or_are_refused(begin):
    decoding = begin()
    decoding.spool = decoding.decoders._spool = Spool(UploadSettings(disk_bytes=1_000_000), Metrics().uploads)
    with pytest.raises(UploadsFullError):
        await decoding.decode(max_s=60.0)
    assert decoding.spool.reserved == 0


async def test_decoders_without_effective_limits_do_not_start(begin, monkeypatch):
    with pytest.raises(RuntimeError, match="RLIMIT_AS"):
        decoder_process.probe_limits(1_000)
    result = decoders._Result(failed="RuntimeError: RLIMIT_AS has no effect on this system")

    async def run(*_, **__):
        return result, 0

    decoding = begin()
    monkeypatch.setattr(decoding.decoders, "_run", run)
    with pytest.raises(GatewaySettingsError, match="RLIMIT_AS has no effect"):
        await decoding.decoders.start()


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false"])
async def test_decoders_that_cannot_start_are_reported(begin, monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(GatewaySettingsError, match="recordings cannot be decoded"):
        await begin().decoders.start()


async def test_a_decoder_that_was_taken_over_is_not_believed(begin, monkeypatch):
    decoding = begin()
    for said in (b"", b"nonsense", b'{"samples": 7}', b'{"samples": -1}', b"[" * 4_096):
        reads, writes = os.pipe2(os.O_NONBLOCK)
        os.write(writes, said)
        os.close(writes)
        result = decoders._read_result(reads)
        os.close(reads)
        with pytest.raises(DecodersBusyError):
            decoding.decoders._check(result, 0, written=100)
    with pytest.raises(InvalidAudioError, match="signal 11"):
        decoding.decoders._check(None, -signal.SIGSEGV, written=0)


@pytest.mark.parametrize("encoding", ["pcm16", "ulaw", "alaw"])
async def test_raw_audio_takes_a_process_where_it_is_long(begin, encoding):
    decoding = begin()
    samples = await decoding.decode(bytes(2_200_001), raw_container(AudioFormat(encoding, 48_000)))
    whole = 2_200_001 // (2 if encoding == "pcm16" else 1)
    assert abs(len(samples) - whole / 3) < 10


async def test_no_file_can_name_another(begin, tmp_path):
    secret = tmp_path / "secret.wav"
    secret.write_bytes(FLOATS)
    playlist = f"#EXTM3U\n#EXTINF:1,\n{secret}\n".encode()
    listing = f"ffconcat version 1.0\nfile {secret}\n".encode()
    for form, data in (("hls", playlist), ("concat", listing)):
        # A form that is never chosen, as containers are recognised by their first bytes.
        with pytest.raises(InvalidAudioError):
            await begin().decode(data, Container(form, {"safe": "0"} if form == "concat" else {}))


async def test_plain_recordings_take_no_process(begin, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    decoding = begin()
    tone = (8_000 * np.sin(np.arange(16_000) / 6)).astype(np.int16)
    assert np.array_equal(await decoding.decode(wav(tone)), tone)
    both = await decoding.decode(wav(np.stack([tone, tone], 1), channels=2))
    assert np.array_equal(both, tone)
    assert len(await decoding.decode(wav(tone, 8_000))) == 32_000
    raw = raw_container(AudioFormat("pcm16", 16_000))
    assert np.array_equal(await decoding.decode(tone.tobytes() + b"a", raw), tone)


@pytest.mark.parametrize("at", [*range(12, 46), 10**9])
async def test_plain_or_not_a_damaged_header_is_no_crash(at):
    whole = wav(np.zeros(50, np.int16))
    for value in (0, 1, 0x7F, 0x80, 0xFF):
        damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
        samples = read_plain(WAV, damaged)
        assert samples is None or len(samples) <= 2 * len(damaged)
    cut = read_plain(WAV, whole[: min(at, 44)])
    assert cut is None or not len(cut)  # a decoder says what is wrong with it


# --- live streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["webm", "ogg"])
async def test_a_stream_is_decoded_while_it_comes(begin, form):
    first, *rest = pages(form)
    decoders = begin().decoders
    heard = []
    async with asyncio.timeout(DEADLINE_S), decoders.stream(stream_of(first + rest[0]), None) as stream:
        await stream.feed(first)
        for number, page in enumerate(rest):
            await stream.feed(page)
            # A container holds back some frames. Nothing is fed before what came is decoded.
            while sum(map(len, heard)) < 320 * (number - 12):
                heard.append(await anext(stream))
        stream.end()
        heard += [samples async for samples in stream]
    samples = np.concatenate(heard)
    assert abs(len(samples) - 32_000) < 800
    assert 0.15 < np.abs(samples[8_000:24_000] / 32_768).mean() < 0.17  # of a sine of 0.244
    assert decoders._counter.labels("decoded")._value.get() == 1


@pytest.mark.parametrize("how", ["damaged", "no audio"])
async def test_a_bad_stream_is_refused(begin, how):
    head = pages()[0]
    data = {"damaged": head + bytes(range(256)) * 200, "no audio": head}[how]
    async with asyncio.timeout(DEADLINE_S), begin().decoders.stream(stream_of(data), None) as stream:
        await stream.feed(data)
        stream.end()
        with pytest.raises(InvalidAudioError):
            _ = [samples async for samples in stream]


async def test_streams_are_bounded_and_end_with_their_clients(begin):
    decoding = begin(streams=1)
    (head, *_) = pages()
    async with decoding.decoders.stream(stream_of(head), None) as stream:
        await stream.feed(head)
        await until(lambda: decoding.processes)
        with pytest.raises(DecodersBusyError, match="1 streams"):
            async with decoding.decoders.stream(stream_of(head), None):
                pass
    assert not decoding.processes
    async with decoding.decoders.stream(stream_of(head), None):
        pass


async def test_a_killed_process_of_a_stream_can_be_retried(begin):
    decoding = begin()
    async with asyncio.timeout(DEADLINE_S), decoding.decoders.stream(FLAC, None) as stream:
        await until(lambda: decoding.processes)
        os.kill(decoding.processes[0], signal.SIGKILL)
        with pytest.raises(DecodersBusyError) as caught:
            await anext(stream)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("settings", "data", "said"),
    [
        pytest.param(
            {"cpu_s": 1.0}, wav([])[:12] + (b"junk" + bytes(4)) * 8_000, "processor time", id="work"
        ),
        pytest.param({"stream_s": 0.5}, FLOATS, "longer than 0.5 s", id="audio"),
        pytest.param({"stream_s": 1.0}, b"", "longer than 1 s", id="time"),
    ],
)
async def test_streams_have_limits(begin, settings, data, said):
    async with asyncio.timeout(DEADLINE_S), begin(**settings).decoders.stream(WAV, None) as stream:

        async def feed():
            while data:
                await stream.feed(data)
                await asyncio.sleep(0)

        feeding = asyncio.create_task(feed())
        with pytest.raises(InvalidAudioError, match=said):
            async for _ in stream:
                pass
        feeding.cancel()
