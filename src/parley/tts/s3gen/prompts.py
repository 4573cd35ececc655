"""The pasts of voices' prompts, made once for all utterances of a voice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from parley.tts.s3gen.batch import AudioVoice
from parley.tts.s3gen.past import Past

DEFAULT_VOICES = 16


class PromptPasts:
    """Keeps those of the voices used last. An utterance holds on to its own for as long as it lasts.

    Args:
        make: computes the pasts of prompts that have at least one token.
        voices: how many are kept.
    """

    def __init__(
        self, make: Callable[[Sequence[AudioVoice]], list[Past]], voices: int = DEFAULT_VOICES
    ) -> None:
        self._make = make
        self._voices = voices
        self._known: OrderedDict[bytes, Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, voice: AudioVoice) -> bool:
        return not len(voice.tokens) or voice.digest in self._known

    def get(self, voices: Sequence[AudioVoice]) -> list[Past | None]:
        """The past of each voice's prompt; None where there is no prompt."""
        missing = {voice.digest: voice for voice in voices if voice not in self}
        new = dict(zip(missing, self._make(list(missing.values())), strict=True)) if missing else {}
        known = {**self._known, **{digest: replace(past, prompt=True) for digest, past in new.items()}}
        found = [known[voice.digest] if len(voice.tokens) else None for voice in voices]
        for voice, past in zip(voices, found, strict=True):
            if past is not None:
                self._known[voice.digest] = past
                self._known.move_to_end(voice.digest)
        while len(self._known) > self._voices:
            self._known.popitem(last=False)
        return found
