"""Processes that decode recordings: one each, bounded, and killed with the request that wanted it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from prometheus_client import Counter

from parley.errors import InvalidAudioError
from parley_gateway.audio import decoder_process
from parley_gateway.audio.recordings import MAX_BYTES, PLAIN, Container, read_plain
from parley_gateway.errors import DecodersBusyError, GatewaySettingsError, UploadsFullError
from parley_gateway.settings_sections import Count, Seconds, Size
from parley_gateway.shares import ShareLimiter, Shares
from parley_gateway.spool import Spool, SpooledFile

_log = logging.getLogger("parley.gateway")
# Starting the template: a Python and FFmpeg's libraries (seconds).
_START_S = 30.0
# After its wall time the kernel has ended a decoder; later than that, its template does not work (seconds).
_GRACE_S = 5.0
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


class _Message(msgspec.Struct, frozen=True):
    """What the template says."""

    ready: bool = False
    failed: str | None = None
    ended: int | None = None
    status: int = 0


@dataclass(eq=False)
class _Template:
    """A running template."""

    process: asyncio.subprocess.Process
    control: socket.socket
    ready: asyncio.Future[None]
    jobs: dict[int, asyncio.Future[int | None]] = field(default_factory=dict)
    """The wait status of each decoder that runs; None: it was lost with its template."""


class Decoders:
    """Decodes recordings, a bounded number at once; an ``async with`` ends every process.

    The template process starts with :meth:`start`, or with the first recording, and anew when it was lost.

    Args:
        settings: how many, and their limits.
        spool: where the samples go.
        counter: by outcome.
    """

    def __init__(self, settings: DecoderSettings, spool: Spool, counter: Counter) -> None:
        self._settings = settings
        self._spool = spool
        self._counter = counter
        self._processes = ShareLimiter(settings.processes)
        self._waiting = Shares(settings.waiting)
        self._numbers = itertools.count()
        self._template: _Template | None = None
        self._starting: asyncio.Task[_Template] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the template, and check that the system keeps the limits that decoders are given.

        Raises:
            GatewaySettingsError: recordings cannot be decoded here; the message says why.
        """
        await asyncio.to_thread(self._spool.prepare)
        try:
            template = await self._ready_template()
            with self._spool.open() as nothing, self._spool.open() as output:
                await nothing.finish()
                await output.finish()
                result, status = await self._run(template, nothing, output, Container("wav"), 1.0, probe=True)
        except (DecodersBusyError, OSError) as error:
            raise GatewaySettingsError(f"recordings cannot be decoded: {error}") from error
        # An empty file is refused by the decoder, behind its limits.
        if result is None or result.refused is None:
            why = result.failed if result and result.failed else f"a decoder ended with status {status}"
            raise GatewaySettingsError(f"recordings cannot be decoded safely: {why}")

    async def aclose(self) -> None:
        """Kill every process."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._template is not None:
            await self._stop(self._template)
        await asyncio.gather(*self._stopping)

    async def decode(
        self, recording: SpooledFile, container: Container, output: SpooledFile, max_s: float
    ) -> None:
        """Decode a recording; cancelled, its process is killed.

        Args:
            recording: finished.
            container: its form.
            output: gets i16 ``[n]``, 16 kHz mono.
            max_s: longest recording (seconds).

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
                template = await self._ready_template()
                output.reserve(_output_bytes(max_s))
                result, status = await self._run(template, recording, output, container, max_s)
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
        waiting = self._waiting
        if not waiting.has_room(owner):
            raise self._busy(f"{waiting.taken} recordings wait for a decoder already")
        try:
            with waiting.take(owner):
                async with asyncio.timeout(self._settings.wait_s):
                    await self._processes.acquire(1, owner)
        except TimeoutError as error:
            raise self._busy("no decoder became free in time") from error
        try:
            yield
        finally:
            self._processes.release(1, owner)

    async def _run(
        self,
        template: _Template,
        recording: SpooledFile,
        output: SpooledFile,
        container: Container,
        max_s: float,
        *,
        probe: bool = False,
    ) -> tuple[_Result | None, int | None]:
        """What a decoder said, if anything, and its wait status."""
        settings = self._settings
        number = next(self._numbers)
        order = {
            "decode": number,
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
            ended = self._begin(template, order, (recording.descriptor, output.descriptor, says))
        except OSError as error:
            os.close(said)
            raise self._busy(f"a decoder could not be started: {error}") from error
        finally:
            os.close(says)
        for file in (recording, output):
            file.hold_until(ended)
        try:
            status = await self._until_ended(template, number, ended)
            return _read_result(said), status
        finally:
            os.close(said)

    def _begin(
        self, template: _Template, order: dict[str, object], descriptors: tuple[int, int, int]
    ) -> asyncio.Future[int | None]:
        socket.send_fds(template.control, [json.dumps(order).encode()], list(descriptors))
        ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        number = order["decode"]
        assert isinstance(number, int)
        template.jobs[number] = ended
        return ended

    async def _until_ended(
        self, template: _Template, number: int, ended: asyncio.Future[int | None]
    ) -> int | None:
        try:
            await asyncio.wait([ended], timeout=self._settings.wall_s + _GRACE_S)
        finally:
            if not ended.done():
                await self._kill(template, number, ended)
        return ended.result()

    async def _kill(self, template: _Template, number: int, ended: asyncio.Future[int | None]) -> None:
        """End a decoder; its place stays taken as long as it lives."""
        with suppress(OSError):
            template.control.send(json.dumps({"kill": number}).encode())
        await asyncio.wait([ended], timeout=_GRACE_S)
        if not ended.done():
            _log.error("the template of the decoders does not answer and is killed")
            await self._stop(template)

    def _check(self, result: _Result | None, status: int | None, written: int) -> None:
        """Raise what a decoder's end means, unless it wrote all that it says."""
        if result is not None and result.refused is not None:
            raise InvalidAudioError(result.refused)
        if result is not None and result.samples and result.samples * _SAMPLE_BYTES == written:
            return
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        if number == signal.SIGXCPU:
            raise InvalidAudioError("decoding the recording takes more processor time than is given to it")
        if number == signal.SIGALRM:  # the machine was busy: the limit of processor time comes first
            raise self._busy(f"decoding took longer than {self._settings.wall_s:g} s")
        # SIGKILL comes from a system without memory, not from the limit of address space.
        if number is not None and number != signal.SIGKILL:
            raise InvalidAudioError(f"the recording is damaged: its decoder ended by signal {number}")
        why = result.failed if result is not None and result.failed else f"status {status}"
        raise self._busy(f"a decoder was lost ({why})")

    async def _ready_template(self) -> _Template:
        if self._template is not None:
            return self._template
        if self._closed:
            raise self._busy("the gateway ends")
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start_template())
            self._starting.add_done_callback(self._started)
        # The others wait for it too, whether or not this request is cancelled.
        return await asyncio.shield(self._starting)

    def _started(self, starting: asyncio.Task[_Template]) -> None:
        self._starting = None
        if not starting.cancelled() and starting.exception() is None:
            template = starting.result()
            if template.control.fileno() >= 0:  # it lives
                self._template = template

    async def _start_template(self) -> _Template:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-sP",
                    "-m",
                    decoder_process.__name__,
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    cwd="/",
                    # Nothing of the gateway's: its environment holds secrets.
                    env={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "LC_ALL": "C.UTF-8"},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise self._busy(f"the decoders' template cannot be started: {error}") from error
            except asyncio.CancelledError:
                ours.close()
                raise
        loop = asyncio.get_running_loop()
        template = _Template(process, ours, loop.create_future())
        loop.add_reader(ours, self._read, template)
        try:
            async with asyncio.timeout(_START_S):
                await template.ready
        except (TimeoutError, OSError) as error:
            await self._stop(template)
            raise self._busy(f"the decoders' template did not start: {error or 'too slow'}") from error
        except asyncio.CancelledError:
            await self._stop(template)
            raise
        return template

    def _read(self, template: _Template) -> None:
        """A message of the template's, or its end."""
        try:
            raw = template.control.recv(decoder_process.MAX_PACKET)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._lose(template)
            stopping = asyncio.get_running_loop().create_task(self._stop(template))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
            return
        message = msgspec.json.decode(raw, type=_Message)
        if message.ended is not None:
            ended = template.jobs.pop(message.ended)
            if not ended.done():
                ended.set_result(message.status)
        elif not template.ready.done():
            if message.ready:
                template.ready.set_result(None)
            else:
                template.ready.set_exception(OSError(message.failed or "it failed"))

    def _lose(self, template: _Template) -> None:
        """The control socket is closed: the template ends or has ended, and its decoders with it."""
        asyncio.get_running_loop().remove_reader(template.control)
        template.control.close()
        if self._template is template:
            self._template = None
            if not self._closed:
                _log.error("the template of the decoders has ended; the next recording starts another one")
        if not template.ready.done():
            template.ready.set_exception(OSError("it ended while it started"))
        for ended in template.jobs.values():
            if not ended.done():
                ended.set_result(None)
        template.jobs.clear()

    async def _stop(self, template: _Template) -> None:
        if template.control.fileno() >= 0:
            self._lose(template)
        with suppress(ProcessLookupError):
            template.process.kill()
        await template.process.wait()

    def _busy(self, why: str) -> DecodersBusyError:
        return DecodersBusyError(f"{why}; try again later", retry_after_s=self._settings.retry_after_s)


def _output_bytes(max_s: float) -> int:
    """The longest output: a resampler gives a little more than it was given."""
    return int((max_s + 2) * decoder_process.OUTPUT_RATE) * _SAMPLE_BYTES


def _read_result(said: int) -> _Result | None:
    """What a decoder that has ended said; it may have been taken over, and is not trusted."""
    try:
        return msgspec.json.decode(os.read(said, _MAX_RESULT), type=_Result)
    except (BlockingIOError, msgspec.MsgspecError):
        return None
