"""Answer a recorded question with the three services, without a transport.

    python from_file.py question.wav answer.wav      # 16-bit mono

``PARLEY_SERVER`` names the server (default: 127.0.0.1:8001).
"""

import asyncio
import os
import sys
import wave

from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSStoppedFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner
from pipecat_parley import ParleyLLMService, ParleySTTService, ParleyTTSService

SERVER = os.environ.get("PARLEY_SERVER", "127.0.0.1:8001")
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
RATE = 24_000


class Ask(FrameProcessor):
    """Asks the language model what was heard."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Turn the final text into a conversation; let everything else pass."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            print("you:", frame.text)
            frame = LLMContextFrame(LLMContext([{"role": "user", "content": frame.text}]))
        await self.push_frame(frame, direction)


class Collect(FrameProcessor):
    """Keeps the audio, and ends the pipeline after it."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = bytearray()
        self.over = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Keep audio; let everything pass."""
        await super().process_frame(frame, direction)
        if isinstance(frame, OutputAudioRawFrame):
            self.audio += frame.audio
        elif isinstance(frame, TTSStoppedFrame):
            self.over.set()
        await self.push_frame(frame, direction)


async def main(question: str, answer: str) -> None:
    with wave.open(question) as file:
        rate, audio = file.getframerate(), file.readframes(file.getnframes())
    stt = ParleySTTService(server=SERVER)
    llm = ParleyLLMService(server=SERVER, settings=ParleyLLMService.Settings(system_instruction=PROMPT))
    tts = ParleyTTSService(server=SERVER)
    collect = Collect()
    params = PipelineParams(audio_in_sample_rate=rate, audio_out_sample_rate=RATE)
    worker = PipelineWorker(Pipeline([stt, Ask(), llm, tts, collect]), params=params, enable_rtvi=False)
    runner = WorkerRunner()
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    piece = rate // 50 * 2
    for start in range(0, len(audio), piece):
        await worker.queue_frame(InputAudioRawFrame(audio[start : start + piece], rate, 1))
    await worker.queue_frame(VADUserStoppedSpeakingFrame())
    async with asyncio.timeout(30):
        await collect.over.wait()
    await worker.stop_when_done()
    await running
    with wave.open(answer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(collect.audio)
    print(f"{len(collect.audio) / 2 / RATE:.1f} s of speech in {answer}")


asyncio.run(main(*sys.argv[1:3]))
