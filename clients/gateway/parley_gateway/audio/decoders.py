"""Processes that decode recordings and live streams: one each, bounded, and killed with the request."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from socket import SHUT_WR, socket, socketpair
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from parley.errors import InvalidAudioError
from parley.timeouts import cancel_all, hold_task
from parley_gateway.audio import decoder_process
from parley_gateway.audio.recordings import MAX_BYTES, PLAIN, Container, read_plain
from parley_gateway.errors import DecodersBusyError, GatewaySettingsError, UploadsFullError
from parley_gateway.settings_sections import Count, Seconds, Size
from parley_gateway.shares import ShareLimiter, Shares
from parley_gateway.spool import Spool, SpooledFile

_log = logging.getLogger("parley.gateway")
# For a decoder to start and set its wall time, after which the kernel ends it; and for a killed one to end
# (seconds).
_GRACE_S = 10.0
_MAX_RESULT = 4_096
_SAMPLE_BYTES = 2
_MOST_READ = 2 * decoder_process.OUTPUT_RATE  # a second at once


class DecoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes in which clients' recordings are decoded."""

    processes: Count = 4
    """Recordings that are decoded at once ([shares](gateway.md#shares))."""
    process_bytes: Size = 268_435_456
    """Memory of each process."""
    cpu_s: Seconds = 20.0
    """Processor time for one recording, in whole seconds; one that takes more is refused."""
    wall_s: Seconds = 60.0
    """Time for one recording, before it is answered with 503."""
    waiting: Count = 64
    """Recordings that wait for a process; more are answered with 503."""
    wait_s: Seconds = 30.0
    """How long they wait, before they are answered with 503 (seconds)."""
    retry_after_s: Seconds = 5.0
    """``Retry-After`` of a request that is refused for want of a process (seconds)."""
    streams: Count = 8
    """Live streams of containers at once, each in a process ([shares](gateway.md#shares)); more
    are answered with 503."""
    stream_s: Seconds = 14_400.0
    """The longest such stream."""


class _Result(msgspec.Struct, frozen=True):
    """What a decoder says."""

    samples: int | None = None
    refused: str | None = None
    failed: str | None = None


class Decoders:
    """Decodes recordings, a bounded number at once; an ``async with`` ends every process."""

    def __init__(self, settings: DecoderSettings, spool: Spool, counter: Counter) -> None:
        self._settings = settings
        self._spool = spool
        self._counter = counter
        self._processes = ShareLimiter(settings.processes)
        self._waiting = Shares(settings.waiting)
        self._streams = Shares(settings.streams)
        self._running: set[asyncio.Task[tuple[_Result | None, int | None]]] = set()
        self._closed = False

    async def start(self) -> None:
        """Check that decoders run, and that the system keeps the limits that they are given.

        Raises:
            GatewaySettingsError: recordings cannot be decoded here; the message says why.
        """
        await asyncio.to_thread(self._spool.prepare)
        try:
            with self._spool.open() as nothing, self._spool.open() as output:
                await nothing.finish()
                await output.finish()
                result, status = await self._run(nothing, output, Container("wav"), 1.0, probe=True)
        except (DecodersBusyError, OSError) as error:
            raise GatewaySettingsError(f"recordings cannot be decoded: {error}") from error
        # An empty file is refused by the decoder, behind its limits.
        if result is None or result.refused is None:
            why = result.failed if result and result.failed else f"a decoder ended with status {status}"
            raise GatewaySettingsError(f"recordings cannot be decoded safely: {why}")

    async def aclose(self) -> None:
        """Kill every process, and start no more."""
        self._closed = True
        await cancel_all(self._running)

    async def decode(
        self, recording: SpooledFile, container: Container, output: SpooledFile, max_s: float
    ) -> None:
        """Decode a recording to i16 ``[n]`` of 16 kHz, mono; cancelled, its process is killed.

        Raises:
            InvalidAudioError: it is damaged, too long, or asks for more than a decoder has.
            DecodersBusyError: no process became free in time, or it was lost.
            UploadsFullError: there is no room for the samples.
        """
        outcome = "failed"
        try:
            if await self._read_plain(recording, container, output, max_s):
                outcome = "plain"
                return
            await output.finish()
            async with self._process(recording.owner):
                if self._closed:
                    raise self._busy("the gateway ends")
                output.reserve(_output_bytes(max_s))
                work = self._run(recording, output, container, max_s)
                run = hold_task(self._running, work, "decoding of a recording")
                try:
                    result, status = await run
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    raise self._busy("the gateway ends") from None
            written = os.fstat(output.descriptor).st_size
            self._check(result, status, written)
            output.reserve(written)
            outcome = "decoded"
        except InvalidAudioError:
            outcome = "refused"
            raise
        except (DecodersBusyError, UploadsFullError) as error:
            outcome = "busy"
            _log.warning("a recording was not decoded: %s", error.to_log(), extra=error.log_extra())
            raise
        except OSError as error:  # no descriptors, or no memory
            outcome = "busy"
            _log.warning("a recording was not decoded: %s", error)
            raise self._without(error) from error
        finally:
            self._counter.labels(outcome).inc()

    @asynccontextmanager
    async def stream(self, container: Container, owner: str | None) -> AsyncIterator[StreamDecoder]:
        """Decode a live stream while it comes; its process ends with the context.

        Raises:
            DecodersBusyError: too many are decoded already, or no process starts.
        """
        if self._closed or not self._streams.has_room(owner):
            raise self._busy(f"{self._streams.taken} streams of containers are decoded already")
        with self._streams.take(owner):
            try:
                said, says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                raise self._without(error) from error
            try:
                async with self._stream_process(container, says) as (process, audio):
                    yield StreamDecoder(audio, lambda written: self._finish_stream(process, said, written))
            finally:
                os.close(said)

    @asynccontextmanager
    async def _stream_process(self, container: Container, says: int) -> AsyncIterator[tuple[Process, socket]]:
        """A decoder of a live stream, and its input and output."""
        limit_s = self._settings.stream_s
        order = self._order(container, limit_s, wall_s=limit_s, is_live=True)
        try:
            audio, end = socketpair()
        except OSError as error:
            os.close(says)
            raise self._without(error) from error
        with audio:
            audio.setblocking(False)
            with end:
                try:
                    process = await self._start(order, end.fileno(), end.fileno(), says)
                except OSError as error:
                    raise self._without(error) from error
            try:
                yield process, audio
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_GRACE_S)

    async def _finish_stream(self, process: Process, said: int, written: int) -> None:
        """Judge the end of a live stream of which so many bytes were decoded."""
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_GRACE_S)
        outcome = "refused"
        try:
            if process.returncode == -signal.SIGALRM:
                raise InvalidAudioError(f"the stream is longer than {self._settings.stream_s:g} s")
            self._check(_read_result(said), process.returncode, written)
            outcome = "decoded"
        except DecodersBusyError:
            outcome = "busy"
            raise
        finally:
            self._counter.labels(outcome).inc()

    async def _read_plain(
        self, recording: SpooledFile, container: Container, output: SpooledFile, max_s: float
    ) -> bool:
        """Whether the recording is so plain that it needs no decoder; then it is read."""
        if container.name not in PLAIN or recording.size > MAX_BYTES:
            return False
        samples = await recording.read(lambda data: read_plain(container, data))
        if samples is None or not 0 < len(samples) <= max_s * decoder_process.OUTPUT_RATE:
            return False
        await output.append(samples.astype("<i2", copy=False).tobytes())
        await output.finish()
        return True

    @asynccontextmanager
    async def _process(self, owner: str | None) -> AsyncIterator[None]:
        """One of the processes that may run; it is waited for."""
        waiting, settings = self._waiting, self._settings
        if not waiting.has_room(owner):
            raise self._busy(f"{waiting.taken} recordings wait for a decoder already")
        async with AsyncExitStack() as stack:
            late = self._busy("no decoder became free in time")
            with waiting.take(owner):
                await stack.enter_async_context(self._processes.take(1, owner, settings.wait_s, late))
            yield

    async def _run(
        self,
        recording: SpooledFile,
        output: SpooledFile,
        container: Container,
        max_s: float,
        *,
        probe: bool = False,
    ) -> tuple[_Result | None, int | None]:
        """What a decoder said, if anything, and its exit status; below 0 the signal that ended it."""
        settings = self._settings
        order = self._order(container, max_s, wall_s=settings.wall_s, probe=probe)
        said, says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            process = await self._start(order, recording.descriptor, output.descriptor, says)
            ended = asyncio.ensure_future(process.wait())
            for file in (recording, output):
                file.hold_until(ended)
            try:
                await asyncio.wait([ended], timeout=settings.wall_s + _GRACE_S)
            finally:
                if not ended.done():
                    # Its place stays taken as long as it lives.
                    with suppress(ProcessLookupError):
                        process.kill()
                    await asyncio.wait([ended], timeout=_GRACE_S)
            return _read_result(said), process.returncode
        finally:
            os.close(said)

    def _order(
        self,
        container: Container,
        max_s: float,
        *,
        wall_s: float,
        probe: bool = False,
        is_live: bool = False,
    ) -> Mapping[str, object]:
        """What a decoder has to do, and its limits."""
        return {
            "gateway": os.getpid(),
            "form": container.name,
            "options": dict(container.options),
            "max_s": max_s,
            "memory_bytes": self._settings.process_bytes,
            "output_bytes": _output_bytes(max_s),
            "cpu_s": self._settings.cpu_s,
            "wall_s": wall_s,
            "probe": probe,
            "is_live": is_live,
        }

    async def _start(self, order: Mapping[str, object], source: int, output: int, says: int) -> Process:
        """Start a decoder; the descriptors are its input, its output and its result, whose copy is closed.

        Raises:
            DecodersBusyError: no thread is left; asyncio waits for each process in one.
        """
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-sP",
                "-m",
                decoder_process.__name__,
                str(says),
                json.dumps(order),
                stdin=source,
                stdout=output,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                # Nothing of the gateway's: its environment holds secrets.
                env={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "LC_ALL": "C.UTF-8"},
                pass_fds=[says],
                start_new_session=True,
            )
        except RuntimeError as error:
            raise self._busy(f"a decoder cannot be waited for ({error})") from error
        finally:
            os.close(says)

    def _check(self, result: _Result | None, status: int | None, written: int) -> None:
        """Raise what a decoder's end means, unless it wrote all that it says."""
        if result is not None and result.refused is not None:
            raise InvalidAudioError(result.refused)
        if result is not None and result.samples and result.samples * _SAMPLE_BYTES == written:
            return
        number = -status if status is not None and status < 0 else None
        if number == signal.SIGXCPU:
            raise InvalidAudioError("decoding the recording takes more processor time than is given to it")
        if number == signal.SIGALRM:  # the machine was busy: the limit of processor time comes first
            raise self._busy(f"decoding took longer than {self._settings.wall_s:g} s")
        # SIGKILL comes from a system without memory, not from the limit of address space.
        if number is not None and number != signal.SIGKILL:
            raise InvalidAudioError(f"the recording is damaged: its decoder ended by signal {number}")
        why = result.failed if result is not None and result.failed else f"status {status}"
        raise self._busy(f"a decoder was lost ({why})")

    def _without(self, error: OSError) -> DecodersBusyError:
        return self._busy(f"a decoder cannot be given what it needs ({error.strerror})")

    def _busy(self, why: str) -> DecodersBusyError:
        return DecodersBusyError(f"{why}; try again later", retry_after_s=self._settings.retry_after_s)


class StreamDecoder:
    """One live stream: feed it bytes in one task, and iterate it in another for int16 ``[n]`` of 16 kHz.

    The iteration raises InvalidAudioError and DecodersBusyError as :meth:`Decoders.decode`.
    """

    def __init__(self, audio: socket, finish: Callable[[int], Awaitable[None]]) -> None:
        self._audio = audio
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._read = 0

    async def feed(self, data: bytes) -> None:
        """Append to the stream, waiting for room; without effect where the decoder has ended."""
        with suppress(OSError):
            await self._loop.sock_sendall(self._audio, data)

    def end(self) -> None:
        """No more comes: the iteration ends behind what was fed."""
        with suppress(OSError):  # the decoder has ended
            self._audio.shutdown(SHUT_WR)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NDArray[np.int16]:
        while data := await self._receive():
            self._read += len(data)
            data = self._rest + data
            whole = len(data) // _SAMPLE_BYTES * _SAMPLE_BYTES
            self._rest = data[whole:]
            if whole:
                return np.frombuffer(data[:whole], "<i2").astype(np.int16, copy=False)
        await self._finish(self._read)
        raise StopAsyncIteration

    async def _receive(self) -> bytes:
        try:
            return await self._loop.sock_recv(self._audio, _MOST_READ)
        except ConnectionError:  # it ended before it had read all
            return b""


def _output_bytes(max_s: float) -> int:
    """The longest output: a resampler gives a little more than it was given."""
    return int((max_s + 2) * decoder_process.OUTPUT_RATE) * _SAMPLE_BYTES


def _read_result(said: int) -> _Result | None:
    """What a decoder that has ended said; it may have been taken over, and is not trusted."""
    try:
        return msgspec.json.decode(os.read(said, _MAX_RESULT), type=_Result)
    except (BlockingIOError, msgspec.MsgspecError):
        return None
