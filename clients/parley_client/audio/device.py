"""The machine's microphone and loudspeaker, through PortAudio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.audio.files import Pcm
from parley_client.audio.playout import Gate
from parley_client.errors import AudioDeviceError
from parley_client.events import AgentAudio

_BLOCK = 512  # samples of one microphone block: 32 ms
_REMEMBERED = 32


def load_sounddevice() -> Any:
    """The module ``sounddevice``.

    Raises:
        AudioDeviceError: it or PortAudio is not installed.
    """
    try:
        import sounddevice  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise AudioDeviceError(
            "talking needs the package sounddevice; in the repository `make talk` brings it, "
            "elsewhere: pip install sounddevice"
        ) from error
    except OSError as error:
        raise AudioDeviceError(
            "talking needs the PortAudio library; on Debian or Ubuntu: sudo apt-get install libportaudio2"
        ) from error
    return sounddevice


class PlaybackBuffer:
    """Audio that is still to be played: filled by the event loop, emptied by the device's thread.

    Args:
        sample_rate: Hz.
        limit_s: Room (seconds of audio); what does not fit is dropped.
    """

    def __init__(self, sample_rate: int, limit_s: float = 300.0) -> None:
        self._lock = threading.Lock()
        self._rate = sample_rate
        self._room = int(limit_s * sample_rate)
        self._pieces: deque[tuple[str, Pcm]] = deque()
        self._played: dict[str, int] = {}
        self._gate = Gate()

    def push(self, audio: AgentAudio) -> None:
        """Queue a piece; pieces of an interrupted response are ignored."""
        with self._lock:
            queued = sum(len(samples) for _, samples in self._pieces)
            wanted = self._gate.accepts(audio.response_id) and len(audio.samples)
            if wanted and queued + len(audio.samples) <= self._room:
                self._pieces.append((audio.response_id, audio.samples))

    def pause(self, response_id: str) -> None:
        """Fall silent with the next block, because of this response, and keep what is queued."""
        with self._lock:
            self._gate.pause(response_id)

    def resume(self, response_id: str) -> None:
        """Play on, if no other response is paused."""
        with self._lock:
            self._gate.resume(response_id)

    def interrupt(self, response_id: str) -> None:
        """Drop what is left of a response."""
        with self._lock:
            self._gate.interrupt(response_id)
            self._pieces = deque(piece for piece in self._pieces if piece[0] != response_id)

    def read_samples(self, count: int) -> Pcm:
        """The next ``count`` samples, silence where there are none. Called on the device's thread."""
        block = np.zeros(count, np.int16)
        filled = 0
        with self._lock:
            while self._gate.is_open and self._pieces and filled < count:
                response_id, samples = self._pieces.popleft()
                part = samples[: count - filled]
                block[filled : filled + len(part)] = part
                filled += len(part)
                self._played[response_id] = self._played.pop(response_id, 0) + len(part)
                if len(part) < len(samples):
                    self._pieces.appendleft((response_id, samples[len(part) :]))
            while len(self._played) > _REMEMBERED:
                del self._played[next(iter(self._played))]
        return block

    def playing(self) -> str | None:
        """The response that is being played; None while nothing is, or the loudspeaker is paused."""
        with self._lock:
            return self._pieces[0][0] if self._pieces and self._gate.is_open else None

    def played_ms(self, response_id: str) -> float:
        """How much of a response has been played (milliseconds)."""
        with self._lock:
            return 1000 * self._played.get(response_id, 0) / self._rate


class AudioDevice:
    """An open microphone and loudspeaker.

    Args:
        playback: What is played.
        sample_rate: Of the loudspeaker (Hz).
        on_audio: Gets each block of the microphone on the event loop: 16 kHz, shape [512].

    Raises:
        AudioDeviceError: on entering; a device is missing or busy.
    """

    def __init__(self, playback: PlaybackBuffer, sample_rate: int, on_audio: Callable[[Pcm], None]) -> None:
        self._playback = playback
        self._rate = sample_rate
        self._on_audio = on_audio
        self._streams: list[Any] = []

    def __enter__(self) -> Self:
        sounddevice = load_sounddevice()
        loop = asyncio.get_running_loop()

        def record(data: Any, _frames: int, _time: Any, _status: Any) -> None:
            loop.call_soon_threadsafe(self._on_audio, np.frombuffer(bytes(data), np.int16))

        def play(data: Any, frames: int, _time: Any, _status: Any) -> None:
            data[:] = self._playback.read_samples(frames).tobytes()

        common = {"channels": 1, "dtype": "int16"}
        try:
            for kind, rate, block, callback in (
                (sounddevice.RawInputStream, INPUT_SAMPLE_RATE, _BLOCK, record),
                (sounddevice.RawOutputStream, self._rate, 0, play),
            ):
                stream = kind(samplerate=rate, blocksize=block, callback=callback, latency="low", **common)
                self._streams.append(stream)
                stream.start()
        except (sounddevice.PortAudioError, ValueError) as error:
            self._close()
            raise AudioDeviceError(f"the microphone or the loudspeaker cannot be used: {error}") from error
        return self

    def __exit__(self, *problem: object) -> None:
        self._close()

    def _close(self) -> None:
        while self._streams:
            self._streams.pop().close()
