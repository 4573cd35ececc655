"""T3 without a model."""

import asyncio

import numpy as np
import torch

from parley.llm.engine import Progress
from parley_torch.tts.t3.checkpoint import T3Shape
from parley_torch.tts.t3.messages import SpeechTokensRequest
from parley_torch.tts.t3.request import TokenPrompt, TokenVoice
from parley_torch.tts.t3.service import SpeechTokenService, TokenUtterance

SHAPE = T3Shape(
    variant="original",
    width=128,
    layers=1,
    inner=256,
    text_vocabulary=704,
    speech_vocabulary=8194,
    context=131072,
    max_text=2050,
    max_speech=4100,
    max_prompt_tokens=150,
)


class Engine:
    """Reports what it is given; ``None`` waits for an abort."""

    def __init__(self, *reports):
        self.reports = reports
        self.requests = []
        self.aborted = []
        self.running = asyncio.Event()
        self._stop = asyncio.Event()

    async def generate(self, request):
        self.requests.append(request)
        self.running.set()
        for report in self.reports:
            if isinstance(report, Exception):
                raise report
            if report is None:
                await self._stop.wait()
                yield Progress(finish_reason="abort")
                return
            yield report

    async def abort(self, request_id):
        self.aborted.append(request_id)
        self._stop.set()

    async def shutdown(self):
        self._stop.set()


class Prompts:
    """Prompts of 36 positions and the text; ``hold`` is called in the thread that computes one."""

    def __init__(self, hold=lambda: None):
        self.asked = []
        self._hold = hold

    def encode(self, voice, text, *, exaggeration, guidance_weight):
        self.asked.append((voice, list(text), exaggeration, guidance_weight))
        self._hold()
        length = 36 + len(text)
        return TokenPrompt(torch.zeros(length, 4), [8194] * (length - 1) + [6561])


class Reader:
    languages = frozenset({"en"})

    def read(self, text, language):
        return [255, *(ord(letter) % 700 for letter in text), 0]


def tokens(*ids, finish=None):
    return Progress("", len(ids), 0, finish, ids)


def voice(**fields):
    return TokenVoice(
        **{"speaker_embedding": np.ones(256, np.float32), "prompt_tokens": np.arange(5), **fields}
    )


def utterance(*, text_tokens=None, **fields):
    request = SpeechTokensRequest(**{"request_id": "r", "text": "Hello.", **fields})
    return TokenUtterance(request, voice(), text_tokens)


def service(engine, *, prompts=None, shape=SHAPE, **options):
    return SpeechTokenService(
        engine, prompts or Prompts(), Reader(), shape, **{"max_length": 2048, **options}
    )
