"""Processes that decode recordings: one each, bounded, and killed with the request that wanted it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec
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
            raise self._busy(f"a decoder cannot be given what it needs ({error.strerror})") from error
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
        order = {
            "gateway": os.getpid(),
            "form": container.name,
            "options": dict(container.options),
            "max_s": max_s,
            "memory_bytes": settings.process_bytes,
            "output_bytes": _output_bytes(max_s),
            "cpu_s": settings.cpu_s,
            "wall_s": settings.wall_s,
            "probe": probe,
        }
        said, says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            try:
                process = await _start(order, recording.descriptor, output.descriptor, says)
            except RuntimeError as error:  # no thread: asyncio waits for each process in one
                raise self._busy(f"a decoder cannot be waited for ({error})") from error
            finally:
                os.close(says)
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

    def _busy(self, why: str) -> DecodersBusyError:
        return DecodersBusyError(f"{why}; try again later", retry_after_s=self._settings.retry_after_s)


async def _start(
    order: Mapping[str, object], source: int, output: int, result: int
) -> asyncio.subprocess.Process:
    """Start a decoder; its descriptors are those of the input, the output and the result."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-sP",
        "-m",
        decoder_process.__name__,
        str(result),
        json.dumps(order),
        stdin=source,
        stdout=output,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        # Nothing of the gateway's: its environment holds secrets.
        env={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "LC_ALL": "C.UTF-8"},
        pass_fds=[result],
        start_new_session=True,
    )


def _output_bytes(max_s: float) -> int:
    """The longest output: a resampler gives a little more than it was given."""
    return int((max_s + 2) * decoder_process.OUTPUT_RATE) * _SAMPLE_BYTES


def _read_result(said: int) -> _Result | None:
    """What a decoder that has ended said; it may have been taken over, and is not trusted."""
    try:
        return msgspec.json.decode(os.read(said, _MAX_RESULT), type=_Result)
    except (BlockingIOError, msgspec.MsgspecError):
        return None
