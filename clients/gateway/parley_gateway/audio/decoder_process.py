"""The program in which a recording is decoded: ``python -m`` this module, for one recording or live stream.

It is started with an environment of its own and inherits no descriptor but those of its input, its output and
its result, so it has no secrets of the gateway in its memory. Before it reads a byte of the recording it is
bounded by the kernel: address space, CPU time, wall time and size of its output; it can open no file and no
socket and start no process, because its limit of descriptors is 0. It ends with the gateway.

It writes samples to the standard output, and one JSON object to the result: ``{"samples": n}``, ``{"refused":
message}`` or ``{"failed": message}``.

Nothing of Parley is imported here: every import is part of what a decoder that was taken over could use.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import av
import av.container
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.stream import Discard

RATES = (8_000, 192_000)
"""Hertz that a recording may have."""
CHANNELS = 8
"""Most channels that a recording may have."""
LEAST_MS = 20
"""What a recording must have (milliseconds): of less than its filter takes a resampler gives nothing."""
OUTPUT_RATE = 16_000
"""Hertz of what a decoder writes: i16, mono, little endian."""
CODECS = (
    "aac",
    "aac_latm",
    "alac",
    "flac",
    "mp2",
    "mp2float",
    "mp3",
    "mp3float",
    "opus",
    "libopus",
    "vorbis",
    "pcm_alaw",
    "pcm_f32le",
    "pcm_f64le",
    "pcm_mulaw",
    "pcm_s16be",
    "pcm_s16le",
    "pcm_s24le",
    "pcm_s32le",
    "pcm_u8",
)
"""FFmpeg's decoders that may run; no other one is even opened, so covers and video stay bytes."""

_NICENESS = 5  # speech that is live comes first
_STREAMS = 32  # of a file; those that are not decoded cost memory too
_RESAMPLERS = 1_000  # changes of rate or layout within one recording
_LIVE_SHARE = 0.1  # of a processor, for a live stream, besides what a recording gets
_SLACK_S = 0.01  # the lengths of frames are added up as floats
# FFmpeg's own filter is 3 dB down at 7.5 kHz and lets 8.2 kHz fold back at -15 dB: noise in a recogniser's
# highest bands. With these it is as sharp as the filter of the plain reader and the Python client (soxr HQ).
_RESAMPLING = {"filter_size": "128", "cutoff": "0.97", "internal_sample_fmt": "fltp"}
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_prctl = ctypes.CDLL(None).prctl
_MESSAGE = 300  # characters of FFmpeg's messages that are passed on
_INPUT, _OUTPUT = 0, 1  # a decoder's descriptors


class RefusedError(Exception):
    """The recording is not decoded; the message is for the client."""


def decode(source: BinaryIO, output: BinaryIO, form: str, options: dict[str, str], max_s: float) -> int:
    """Decode a recording.

    Args:
        source: the file.
        output: gets i16 ``[n]`` little endian, 16 kHz mono.
        form: FFmpeg's name of the container.
        options: of the demuxer.
        max_s: longest recording (seconds).

    Returns:
        The number of samples.

    Raises:
        RefusedError: it is damaged, too long, or nothing that is decoded here.
    """
    try:
        with av.open(
            source,
            "r",
            format=form,
            container_options={
                "codec_whitelist": ",".join(CODECS),
                "format_whitelist": form,
                "max_streams": str(_STREAMS),
                **options,
            },
            io_open=_refuse_to_open,
        ) as file:
            return _decode_stream(file, output, max_s)
    except (av.FFmpegError, ValueError, OverflowError) as error:
        if isinstance(error, MemoryError):  # PyAV's own is of both kinds
            raise
        raise RefusedError(f"the file cannot be read as {form}: {_explain(error)}"[:_MESSAGE]) from error


def _explain(error: Exception) -> str:
    """Why FFmpeg gave a file up, in words about the file."""
    if isinstance(error, av.InvalidDataError | av.EOFError):
        return "its data is damaged, or not of this form"
    if isinstance(error, av.PatchWelcomeError | av.ArgumentError):
        return (
            "it has what is not decoded here, such as a sample rate or a codec that changes within the file; "
            "send it as WAV or FLAC"
        )
    return str(error.strerror if isinstance(error, av.FFmpegError) else error)


def _refuse_to_open(*_: object) -> NoReturn:
    """No file may name another one."""
    raise RefusedError("the file names another file")


def _decode_stream(file: av.container.InputContainer, output: BinaryIO, max_s: float) -> int:
    if not file.streams.audio:
        raise RefusedError("there is no audio in the file")
    stream = file.streams.audio[0]
    for other in file.streams:
        if other is not stream:
            other.discard = Discard.all
    context = stream.codec_context
    # FFmpeg may know the stream's codec and have no decoder for it.
    codec = context.codec.name if context is not None else "none"
    if codec not in CODECS:
        raise RefusedError(f"audio of the codec {codec[:32]} is not read")
    _check_form(context.sample_rate, context.channels)
    # Writers of PCM that cannot go back claim any length; the file's size bounds it.
    if stream.duration is not None and stream.time_base is not None and not codec.startswith("pcm_"):
        _check_length(float(stream.duration * stream.time_base), max_s)
    context.thread_count = 1
    written = _Samples(output, max_s)
    for packet in file.demux(stream):
        # Claims of headers are checked again where they become memory.
        for frame in packet.decode():
            _check_form(frame.sample_rate, frame.layout.nb_channels)
            written.add(frame)
    return written.finish()


def _check_form(rate: int | None, channels: int) -> None:
    if not RATES[0] <= (rate or 0) <= RATES[1]:
        raise RefusedError(f"the recording has {rate} samples a second; it must be {RATES[0]} to {RATES[1]}")
    if not 1 <= channels <= CHANNELS:
        raise RefusedError(f"the recording has {channels} channels; it must be 1 to {CHANNELS}")


def _check_length(seconds: float, max_s: float) -> None:
    if seconds > max_s + _SLACK_S:
        raise RefusedError(f"the recording is longer than {max_s:g} s")


class _Samples:
    """Frames to samples, through a resampler for each form of frames that comes."""

    def __init__(self, output: BinaryIO, max_s: float) -> None:
        self._output = output
        self._max_s = max_s
        self._resampler: AudioResampler | None = None
        self._form: tuple[str, str, int] | None = None
        self._resamplers = 0
        self._heard_s = 0.0
        self._written = 0

    def add(self, frame: AudioFrame) -> None:
        self._heard_s += frame.samples / frame.sample_rate
        # Before resampling: a frame of low rate becomes many samples.
        _check_length(self._heard_s, self._max_s)
        form = (frame.format.name, frame.layout.name, frame.sample_rate)
        if form != self._form:
            self._flush()
            self._resamplers += 1
            if self._resamplers > _RESAMPLERS:
                raise RefusedError("the recording changes its form too often")
            self._resampler = AudioResampler(
                format="s16", layout="mono", rate=OUTPUT_RATE, options=_RESAMPLING
            )
            self._form = form
        assert self._resampler is not None
        # Its times are not needed, and strangers' numbers.
        frame.pts = None
        self._write(self._resampler.resample(frame))

    def finish(self) -> int:
        self._flush()
        self._output.flush()
        if not self._written:
            heard_ms = 1_000 * self._heard_s
            raise RefusedError(
                f"the recording is too short: {heard_ms:.3g} ms; it must have {LEAST_MS} ms"
                if heard_ms
                else "the recording is empty"
            )
        return self._written

    def _flush(self) -> None:
        if self._resampler is not None:
            self._write(self._resampler.resample(None))

    def _write(self, frames: list[AudioFrame]) -> None:
        for frame in frames:
            self._written += frame.samples
            _check_length(self._written / OUTPUT_RATE, self._max_s + 1)
            self._output.write(memoryview(frame.planes[0])[: 2 * frame.samples])


class _LiveInput(io.FileIO):
    """A pipe. Processor time is granted as time passes."""

    def __init__(self, cpu_s: float) -> None:
        super().__init__(_INPUT, "rb", closefd=False)
        self._cpu_s = cpu_s
        self._began_s = time.monotonic()

    def read(self, size: int | None = -1, /) -> bytes:
        """What has come, at most ``size`` bytes; empty at the end."""
        data = super().read(-1 if size is None else size)
        granted_s = self._cpu_s + _LIVE_SHARE * (time.monotonic() - self._began_s)
        resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(granted_s)), resource.RLIM_INFINITY))
        return data or b""


def run_decoder(job: dict[str, Any]) -> dict[str, Any]:
    """Decode what lies at the decoder's descriptors; gives the result."""
    is_live = job["is_live"]
    try:
        with (
            _LiveInput(job["cpu_s"]) if is_live else open(_INPUT, "rb", buffering=0, closefd=False) as source,
            open(_OUTPUT, "wb", buffering=0 if is_live else 65_536, closefd=False) as output,
        ):
            return {"samples": decode(source, output, job["form"], job["options"], job["max_s"])}
    except RefusedError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "decoding the recording takes more memory than is given to it"}


def limit_process(job: dict[str, Any]) -> None:
    """Bound this process; what is open already stays usable.

    Raises:
        OSError: a limit cannot be set.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, job["wall_s"])  # SIGALRM ends the process
    os.nice(_NICENESS)
    # Of all processes this is the one that an exhausted machine can do without.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    cpu_s = max(1, round(job["cpu_s"]))
    for kind, amount in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, job["output_bytes"]),
        (resource.RLIMIT_AS, _address_space() + job["memory_bytes"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (amount, amount))
    # With two equal limits of CPU time the signal would be SIGKILL, which has other causes too.
    most_s = resource.RLIM_INFINITY if job["is_live"] else cpu_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, most_s))


def _address_space() -> int:
    """Bytes of address space that the process has."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()


def probe_limits(memory_bytes: int) -> None:
    """Check that the kernel keeps the limits of this process.

    Raises:
        RuntimeError: it does not.
    """
    try:
        bytearray(2 * memory_bytes)
    except MemoryError:
        pass
    else:
        raise RuntimeError("RLIMIT_AS has no effect on this system")
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    else:
        raise RuntimeError("RLIMIT_NOFILE has no effect on this system")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, and take no new privileges.

    Where the system has no ``prctl`` the limits of CPU and wall time still end the process.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _warm() -> None:
    """Run once through what a decoder needs: nothing can be imported when no file can be opened."""
    header = struct.pack("<HHIIHH", 1, 1, 8_000, 16_000, 2, 16)
    body = b"fmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", 1_600) + bytes(1_600)
    wav = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
    json.dumps({"samples": decode(io.BytesIO(wav), io.BytesIO(), "wav", {}, 1.0)})
    try:
        decode(io.BytesIO(b"fLaC" + bytes(100)), io.BytesIO(), "flac", {}, 1.0)
    except RefusedError as error:
        json.dumps({"refused": str(error)})


def main() -> None:
    """Decode one recording; the arguments are the descriptor of the result, and the order as JSON."""
    result, order = int(sys.argv[1]), json.loads(sys.argv[2])
    die_with_parent(order["gateway"])
    try:
        av.logging.set_level(None)
        _warm()
        limit_process(order)
        if order["probe"]:
            probe_limits(order["memory_bytes"])
        said = run_decoder(order)
    except Exception as error:  # noqa: BLE001 - sent to the gateway, which logs it
        said = {"failed": f"{type(error).__name__}: {error}"[:_MESSAGE]}
    os.write(result, json.dumps(said).encode())


if __name__ == "__main__":
    main()
