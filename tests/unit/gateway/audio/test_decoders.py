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

from parley.errors import InvalidAudioError
from parley_gateway.audio import decoder_process, decoders
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.audio.decoders import Decoders, DecoderSettings
from parley_gateway.audio.recordings import Container, raw_container, read_plain
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
    def template(self):
        return self.decoders._template.process.pid

    @property
    def processes(self):
        return children(self.template)


class Stuck(SpooledFile):
    def __init__(self, spool, descriptor, owner=None):
        super().__init__(spool, owner)
        self._descriptor = descriptor


def children(process):
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_alive(process):
    """Whether a process runs; one whose end was not collected yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
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
    await until(lambda: decoding.decoders._template and len(decoding.processes) >= number)
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
        await until(lambda: "Max open files            0" in (proc / "limits").read_text())
        limits = {
            line[:26].strip(): line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()
        }
        assert b"sesame" not in (proc / "environ").read_bytes()
        assert b"sesame" not in (proc.parent / f"{decoding.template}/environ").read_bytes()
        assert sorted(int(one.name) for one in (proc / "fd").iterdir()) == [0, 1, 2, 3, 4, 5]
        assert limits["Max processes"] == limits["Max core file size"] == limits["Max open files"] == "0"
        assert limits["Max cpu time"] == "7"
        assert int(limits["Max file size"]) == 2 * 16_000 * 62
        assert int(limits["Max address space"]) < 100_000_000 + 1_000_000_000
    finally:
        os.close(inherited)
    task.cancel()
    await asyncio.wait([task])


_CLOSES_ALL = """
import fcntl, json, os, resource
from parley_gateway.audio import decoder_process
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
given = [os.open(os.devnull, os.O_RDWR), os.open(os.devnull, os.O_RDWR), os.dup(1)]
high = [fcntl.fcntl(given[0], fcntl.F_DUPFD, min(number, hard - 1)) for number in (4_096, 10_000)]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
decoder_process._take_descriptors(given)
left = []
for number in (*range(64), *high):
    try:
        os.fstat(number)
    except OSError:
        continue
    left.append(number)
os.write(5, json.dumps(left).encode())
"""


def test_a_decoder_closes_descriptors_of_any_number():
    """In a process of its own, which may have had a higher limit when it opened them."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSES_ALL], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == "[0, 1, 2, 3, 4, 5]"


async def test_a_lost_template_is_replaced(begin):
    decoding = begin()
    (task,) = await stuck(decoding)
    template, (process,) = decoding.template, decoding.processes
    os.kill(template, signal.SIGKILL)
    with pytest.raises(DecodersBusyError) as caught:
        await task
    assert caught.value.retryable
    await until(lambda: not is_alive(process))
    assert len(await decoding.decode()) == 16_000
    assert decoding.template != template


@pytest.mark.parametrize("what", ["os.pipe2", "socket.socketpair"])
async def test_a_process_without_descriptors_may_be_asked_again(begin, monkeypatch, what):
    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    one = begin()
    if what == "os.pipe2":  # without a template no decoder comes so far
        await one.decode()
    with monkeypatch.context() as patch:
        patch.setattr(what, refuse)
        with pytest.raises(DecodersBusyError, match="Too many open files"):
            await one.decode()
    assert len(await one.decode()) == 16_000
    assert one.spool.reserved == 0


async def test_a_request_that_leaves_does_not_end_the_start_for_others(begin):
    decoding = begin()
    leaves, stays = (asyncio.create_task(decoding.decode()) for _ in range(2))
    await until(lambda: decoding.decoders._starting)
    leaves.cancel()
    assert len(await stays) == 16_000
    assert leaves.cancelled()


async def test_a_gateway_that_ends_while_they_start_leaves_nothing(begin):
    for steps in (1, 5, 50):
        decoding = begin()
        task = asyncio.create_task(decoding.decode())
        await until(lambda decoding=decoding: decoding.decoders._starting)
        for _ in range(steps):
            await asyncio.sleep(0)
        await decoding.decoders.aclose()
        await asyncio.wait([task])
        assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_template_that_does_not_answer_is_replaced(begin, monkeypatch):
    monkeypatch.setattr(decoders, "_GRACE_S", 0.1)
    decoding = begin()
    await decoding.decode()
    template = decoding.template
    decoding.decoders._settings = DecoderSettings(wall_s=0.1)
    os.kill(template, signal.SIGSTOP)
    with pytest.raises(DecodersBusyError):
        await decoding.decode()
    assert not is_alive(template)


async def test_processes_end_with_the_gateway():
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_decoders import *
async def main():
    metrics = Metrics()
    spool = Spool(UploadSettings(), metrics.uploads)
    decoding = Decoding(Decoders(DecoderSettings(), spool, metrics.recordings), spool)
    await stuck(decoding, 2)
    print(decoding.template, *decoding.processes, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    pids = [int(one) for one in (await gateway.stdout.readline()).split()]
    assert len(pids) == 3
    assert all(map(is_alive, pids))
    gateway.kill()
    await gateway.wait()
    await until(lambda: not any(map(is_alive, pids)))


async def test_one_that_hangs_is_ended_and_may_be_tried_again(begin):
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


async def test_so_many_wait(begin):
    decoding = begin(processes=1, waiting=1)
    (task,) = await stuck(decoding)
    waiting = asyncio.create_task(decoding.decode())
    await until(lambda: decoding.decoders._waiting.taken == 1)
    with pytest.raises(DecodersBusyError, match="wait for a decoder already") as caught:
        await decoding.decode()
    assert caught.value.retry_after_s
    task.cancel()
    assert len(await waiting) == 16_000


async def test_they_wait_so_long(begin):
    decoding = begin(processes=1, wait_s=0.1)
    (task,) = await stuck(decoding)
    with pytest.raises(DecodersBusyError, match="no decoder became free"):
        await decoding.decode()
    task.cancel()
    await asyncio.wait([task])
    assert len(await decoding.decode()) == 16_000


async def test_one_owner_leaves_a_process_to_others(begin):
    decoding = begin(processes=4, waiting=8)
    tasks = [asyncio.create_task(decoding.stick("one")) for _ in range(9)]
    await until(lambda: decoding.decoders._template and len(decoding.processes) == 3)
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


async def test_where_limits_have_no_effect_nothing_starts(begin, monkeypatch):
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
async def test_a_template_that_cannot_start_is_said(begin, monkeypatch, program):
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
        decoding.decoders._check(None, signal.SIGSEGV, written=0)


@pytest.mark.parametrize("encoding", ["pcm16", "ulaw", "alaw"])
async def test_raw_audio_takes_a_process_where_it_is_long(begin, encoding):
    decoding = begin()
    samples = await decoding.decode(bytes(2_200_001), raw_container(AudioFormat(encoding, 48_000)))
    whole = 2_200_001 // (2 if encoding == "pcm16" else 1)
    assert abs(len(samples) - whole / 3) < 10
    assert decoding.decoders._template is not None


async def test_no_file_can_name_another(begin, tmp_path):
    secret = tmp_path / "secret.wav"
    secret.write_bytes(FLOATS)
    playlist = f"#EXTM3U\n#EXTINF:1,\n{secret}\n".encode()
    listing = f"ffconcat version 1.0\nfile {secret}\n".encode()
    for form, data in (("hls", playlist), ("concat", listing)):
        # Even if such a form were ever chosen: containers are told from first bytes that these do not have.
        with pytest.raises(InvalidAudioError):
            await begin().decode(data, Container(form, {"safe": "0"} if form == "concat" else {}))


async def test_plain_recordings_take_no_process(begin):
    decoding = begin()
    tone = (8_000 * np.sin(np.arange(16_000) / 6)).astype(np.int16)
    assert np.array_equal(await decoding.decode(wav(tone)), tone)
    both = await decoding.decode(wav(np.stack([tone, tone], 1), channels=2))
    assert np.array_equal(both, tone)
    assert len(await decoding.decode(wav(tone, 8_000))) == 32_000
    raw = raw_container(AudioFormat("pcm16", 16_000))
    assert np.array_equal(await decoding.decode(tone.tobytes() + b"a", raw), tone)
    assert decoding.decoders._template is None


@pytest.mark.parametrize("at", [*range(12, 46), 10**9])
async def test_plain_or_not_a_damaged_header_is_no_crash(at):
    whole = wav(np.zeros(50, np.int16))
    for value in (0, 1, 0x7F, 0x80, 0xFF):
        damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
        samples = read_plain(WAV, damaged)
        assert samples is None or len(samples) <= 2 * len(damaged)
    cut = read_plain(WAV, whole[: min(at, 44)])
    assert cut is None or not len(cut)  # a decoder says what is wrong with it
