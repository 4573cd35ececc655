"""OpenAI's interfaces by HTTP, of the gateway or of any service: chat, speech and transcription."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import numpy as np
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError

from stages.drivers.common import (
    EndpointOptions,
    readable,
    recording_recognizer,
    text_of,
    to_wav,
)
from stages.protocols import (
    Delta,
    EndpointError,
    LanguageModel,
    Pcm,
    Prompt,
    Recognizer,
    Sound,
    Usage,
    Voice,
)

_SPEECH_RATE = 24_000
"""Of ``pcm``, in OpenAI's documentation and everywhere else."""
_LIMIT_TOKENS = 128
_CHAT, _SPEECH, _TRANSCRIPTION = "gpt-4o-mini", "tts-1", "whisper-1"
_VOICE = "alloy"


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except APIStatusError as error:
        raise EndpointError(f"HTTP {error.status_code}") from error
    except APIConnectionError as error:
        raise EndpointError("no connection") from error
    except OpenAIError as error:
        raise EndpointError(type(error).__name__) from error


@asynccontextmanager
async def _client(options: EndpointOptions) -> AsyncIterator[AsyncOpenAI]:
    with _translated():
        client = AsyncOpenAI(
            base_url=options.url or None,
            api_key=options.key or "none",
            max_retries=0,
        )
        async with client:
            yield client


@asynccontextmanager
async def open_language_model(options: EndpointOptions) -> AsyncIterator[LanguageModel]:
    """``POST /chat/completions``, streamed."""
    async with _client(options) as client:

        async def answer(prompt: Prompt) -> AsyncGenerator[Delta | Usage, None]:
            with _translated():
                stream = await client.chat.completions.create(
                    model=options.model or _CHAT,
                    messages=[
                        {"role": "system", "content": prompt.system},
                        {"role": "user", "content": prompt.user},
                    ],
                    stream=True,
                    stream_options={"include_usage": True},
                    max_completion_tokens=_LIMIT_TOKENS,
                )
                async with stream:
                    chunks = aiter(stream)
                    while True:
                        with readable():
                            chunk = await anext(chunks, None)
                            if chunk is None:
                                break
                            text = chunk.choices[0].delta.content if chunk.choices else None
                            delta = Delta(text_of(text)) if text else None
                            usage = Usage(int(chunk.usage.completion_tokens)) if chunk.usage else None
                        if delta is not None:
                            yield delta
                        if usage is not None:
                            yield usage

        yield answer


@asynccontextmanager
async def open_voice(options: EndpointOptions) -> AsyncIterator[Voice]:
    """``POST /audio/speech``."""
    async with _client(options) as client:

        async def speak(text: str) -> AsyncGenerator[Sound, None]:
            model, voice = options.model or _SPEECH, options.voice or _VOICE
            with _translated():
                async with client.audio.speech.with_streaming_response.create(
                    model=model, voice=voice, input=text, response_format="pcm"
                ) as response:
                    rest = b""
                    async for part in response.iter_bytes():
                        whole = rest + part
                        size = len(whole) // 2 * 2
                        rest = whole[size:]
                        yield Sound(np.frombuffer(whole[:size], "<i2").astype(np.int16), _SPEECH_RATE)

        yield speak


@asynccontextmanager
async def open_transcriber(options: EndpointOptions) -> AsyncIterator[Recognizer]:
    """``POST /audio/transcriptions``."""
    async with _client(options) as client:

        async def transcribe(samples: Pcm) -> str:
            with _translated(), readable():
                written = await client.audio.transcriptions.create(
                    model=options.model or _TRANSCRIPTION, file=("speech.wav", to_wav(samples))
                )
                return text_of(written.text)

        yield recording_recognizer(transcribe)
