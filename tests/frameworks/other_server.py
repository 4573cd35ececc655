"""Serve speech-to-speech (Hugging Face) on a port, with a gateway of Parley behind it as its models.

Run with the packages of the serving environment, and the folder of speech-to-speech as first argument. What
it would load from elsewhere is small here: speech is found by its loudness, sentences by their marks.
"""

import re
import sys
from types import ModuleType, SimpleNamespace

import torch


class Loudness(torch.nn.Module):
    """In the place of Silero's detector."""

    def forward(self, samples, _rate):
        return (samples.abs().max() > 0.02).float()

    def reset_states(self):
        """There are none."""


def main():
    folder, port, base_url = sys.argv[1:]
    sys.path.append(folder)
    torch.hub.load = lambda *_, **__: (Loudness(), None)
    nltk = sys.modules["nltk"] = ModuleType("nltk")
    nltk.sent_tokenize = lambda text: re.findall(r"[^.!?]+[.!?]*\s*", text)
    nltk.data = SimpleNamespace(find=lambda _: None)
    from speech_to_speech import cli

    options = {
        "host": "127.0.0.1",
        "port": port,
        "num-pipelines": "8",
        "stt": "openai",
        "openai-stt-base-url": base_url,
        "openai-stt-api-key": "none",
        "openai-stt-model": "whisper-1",
        "llm-backend": "chat-completions",
        "responses-api-base-url": base_url,
        "responses-api-api-key": "none",
        "model-name": "gpt-4o-mini",
        "tts": "openai",
        "openai-tts-base-url": base_url,
        "openai-tts-api-key": "none",
        "openai-tts-model": "tts-1",
        "openai-tts-voice": "alloy",
        "smart-turn": "false",
    }
    sys.argv = ["speech-to-speech", "serve", *(f"--{name}={value}" for name, value in options.items())]
    cli.main()


if __name__ == "__main__":
    main()
