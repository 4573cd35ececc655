"""Answer a recorded question with the three models, without a room.

    python from_file.py question.wav answer.wav      # 16-bit mono

``PARLEY_SERVER`` names the server (default: 127.0.0.1:8001).
"""

import asyncio
import os
import sys
import wave
from pathlib import Path

from livekit import rtc
from livekit.agents import ChatContext
from livekit.plugins import parley

SERVER = os.environ.get("PARLEY_SERVER", "127.0.0.1:8001")
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."


async def main(rate: int, audio: bytes) -> rtc.AudioFrame:
    """The spoken answer to a spoken question."""
    async with (
        parley.STT(server=SERVER) as stt,
        parley.LLM(server=SERVER) as llm,
        parley.TTS(server=SERVER) as tts,
    ):
        heard = await stt.recognize(rtc.AudioFrame(audio, rate, 1, len(audio) // 2))
        print("you:", heard.alternatives[0].text)
        context = ChatContext.empty()
        context.add_message(role="system", content=PROMPT)
        context.add_message(role="user", content=heard.alternatives[0].text)
        async with tts.stream() as speech:
            async for text in llm.chat(chat_ctx=context).to_str_iterable():
                speech.push_text(text)  # what makes a clause is spoken while the rest is being written
            speech.end_input()
            return rtc.combine_audio_frames([piece.frame async for piece in speech])


question, answer = sys.argv[1:3]
with wave.open(question) as file:
    spoken = asyncio.run(main(file.getframerate(), file.readframes(file.getnframes())))
Path(answer).write_bytes(spoken.to_wav_bytes())
print(f"{spoken.duration:.1f} s of speech in {answer}")
