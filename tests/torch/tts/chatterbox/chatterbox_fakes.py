"""The models behind an utterance: T3, S3Gen, voices and the normaliser."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from parley.errors import SessionNotFoundError, UnsupportedVoiceError
from parley.tts.messages import MoreText, SpeakRequest
from parley.tts.normalization.normalizer import TextNormalizer
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.chatterbox.service import ChatterboxService
from parley_torch.tts.chatterbox.utterance import ChatterboxParts
from parley_torch.tts.s3gen.messages import AudioChunk
from parley_torch.tts.t3.messages import TokensCompleted, TokensDrawn
from parley_torch.tts.voices.voice import Voice

TOKENS_PER_LETTER = 2
STEP_TOKENS = 10  # of audio made at once
RATE = 24_000
PER_TOKEN = RATE // 25


def voice(voice_id="default"):
    return Voice(
        voice_id,
        np.zeros(256, np.float32),
        np.zeros(5, np.int32),
        np.zeros(192, np.float32),
        np.zeros(3, np.int32),
        np.zeros((6, 80), np.float32),
    )


class FakeTokens:
    """T3: two tokens for every character, their values counted from the request's seed."""

    def __init__(self) -> None:
        self.requests = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.token_s = 0.002
        self.failures: deque[Exception | None] = deque()  # after the first event of each request
        self.hang = False
        self.reason = "stop"
        self.abort_s = 0.0

    async def generate(self, request, who):
        self.requests.append(request)
        self.running.add(request.request_id)
        failure = self.failures.popleft() if self.failures else None
        total = min(TOKENS_PER_LETTER * len(request.text), request.max_tokens)
        for offset in range(0, total, request.chunk_tokens):
            count = min(request.chunk_tokens, total - offset)
            await asyncio.sleep(count * self.token_s)
            if self.hang:
                await asyncio.sleep(10_000)
            if request.request_id not in self.running:
                yield TokensCompleted(finish_reason="abort"), np.zeros(0, np.int32)
                return
            tokens = (request.sampling.seed + np.arange(offset, offset + count)) % 6561
            yield TokensDrawn(offset=offset), tokens.astype(np.int32)
            if failure is not None:
                # The engine is rid of it, as the real one is.
                self.running.discard(request.request_id)
                raise failure
        self.running.discard(request.request_id)
        yield TokensCompleted(finish_reason=self.reason, spoken_tokens=total), np.zeros(0, np.int32)

    async def abort(self, request_id):
        await asyncio.sleep(self.abort_s)
        self.aborted.append(request_id)
        self.running.discard(request_id)


@dataclass
class _Open:
    message: object
    tokens: list = field(default_factory=list)
    final: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class FakeAudio:
    """S3Gen: every sample of a token has the token's value plus one."""

    def __init__(self) -> None:
        self.opened = []
        self.open: dict[str, _Open] = {}
        self.stopped: list[str] = []
        self.step_s = 0.01
        self.open_s = 0.0  # until an opened utterance is known: pushes may overtake it
        self.failures: deque[Exception | None] = deque()  # before the second piece of each utterance
        self.ends_early = False
        self.most_open = 0

    async def synthesize(self, message, voice, tokens=None):
        self.opened.append(message)
        await asyncio.sleep(self.open_s)
        entry = _Open(message, list(tokens), message.final)
        self.open[message.utterance_id] = entry
        self.most_open = max(self.most_open, len(self.open))
        failure = self.failures.popleft() if self.failures else None
        done = 0
        while True:
            while len(entry.tokens) - done < STEP_TOKENS and not entry.final:
                entry.changed.clear()
                await entry.changed.wait()
            await asyncio.sleep(self.step_s)
            if message.utterance_id not in self.open:
                return  # stopped
            if done and failure is not None:
                del self.open[message.utterance_id]
                raise failure
            end = min(done + STEP_TOKENS, len(entry.tokens))
            last = entry.final and end == len(entry.tokens)
            per_token = message.sample_rate // 25
            audio = np.repeat(np.array(entry.tokens[done:end], np.int16) + 1, per_token)
            if last:
                del self.open[message.utterance_id]
                if self.ends_early:
                    return
            yield (
                AudioChunk(
                    sample_rate=message.sample_rate,
                    offset=done * per_token,
                    start_ms=done * 40.0,
                    end_ms=end * 40.0,
                    final=last,
                ),
                audio,
            )
            done = end
            if last:
                return

    async def push(self, message, tokens):
        await asyncio.sleep(0.001)
        entry = self.open.get(message.utterance_id)
        if entry is None:
            raise SessionNotFoundError(message.utterance_id)
        assert message.first == len(entry.tokens)
        entry.tokens += list(tokens)
        entry.final = message.final
        entry.changed.set()

    async def stop(self, utterance_id):
        self.stopped.append(utterance_id)
        entry = self.open.pop(utterance_id, None)
        if entry is not None:
            entry.final = True
            entry.changed.set()


class FakeVoices:
    """One voice."""

    def __init__(self) -> None:
        self.reads = 0
        self.delay_s = 0.0

    async def get(self, voice_id):
        self.reads += 1
        await asyncio.sleep(self.delay_s)
        if voice_id != "default":
            raise UnsupportedVoiceError(f"there is no voice {voice_id!r}")
        return voice()


class FakeNormalizer:
    """Spells "5" out, and knows no tags."""

    def __init__(self) -> None:
        self._normalizer = TextNormalizer({"en": lambda text: text.replace("5", "five")}, tags=False)

    async def normalize(self, text, language):
        await asyncio.sleep(0.001)
        return self._normalizer.normalize(text, language)


class Listener:
    """Takes an utterance's audio, and checks that it describes itself."""

    def __init__(self, room=10_000):
        self.pieces = []
        self.room = room
        self.first = asyncio.Event()

    def __call__(self, chunk, audio):
        if len(self.pieces) >= self.room:
            return False
        assert chunk.offset == self.samples
        for mark in chunk.words:
            assert chunk.offset <= mark.at_sample <= chunk.offset + len(audio)
            if len(audio):
                assert mark.at_sample < chunk.offset + len(audio)
        self.pieces.append((chunk, audio))
        if len(audio):
            self.first.set()
        return True

    @property
    def samples(self):
        return sum(len(audio) for _, audio in self.pieces)

    @property
    def audio(self):
        return np.concatenate([np.zeros(0, np.int16), *(audio for _, audio in self.pieces)])

    @property
    def marks(self):
        return [mark for chunk, _ in self.pieces for mark in chunk.words]

    def words(self, text):
        return [text[mark.start_char : mark.end_char] for mark in self.marks]


class Rig:
    """A service over fakes."""

    def __init__(self, **limits):
        self.tokens = FakeTokens()
        self.audio = FakeAudio()
        self.voices = FakeVoices()
        self.service = ChatterboxService(
            ChatterboxParts(self.tokens, self.audio, self.voices, FakeNormalizer()),
            ChatterboxLimits(**limits),
            draw_seed=lambda: 7,
        )

    async def say(self, text, *, request_id="a", listener=None, **fields):
        """Speak all at once."""
        listener = listener or Listener()
        await self.service.speak(SpeakRequest(request_id=request_id, text=text, **fields), listener)
        return listener

    def begin(self, text="", *, request_id="a", listener=None, **fields):
        """Open a stream; its task and listener."""
        listener = listener or Listener()
        request = SpeakRequest(request_id=request_id, text=text, final=False, **fields)
        return asyncio.create_task(self.service.speak(request, listener)), listener

    def more(self, text, first, *, request_id="a", final=False):
        self.service.push(MoreText(request_id=request_id, text=text, first=first, final=final))

    def assert_idle(self):
        """Nothing runs and nothing is held."""
        assert len(self.service) == 0
        assert not self.tokens.running
        assert not self.audio.open
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, others
