"""``chatterbox`` as a :class:`parley.engines.base.Synthesizer`, and for text that is still being written."""

from __future__ import annotations

from collections.abc import Sequence

from parley.engines.speaker import ModelSpeaker
from parley.inference import ModelClient
from parley.tts.messages import MoreText
from parley.tts.t3.text import MULTILINGUAL

MODEL = "chatterbox"


class ChatterboxSpeaker(ModelSpeaker):
    """Speech from the model ``chatterbox``; see :class:`parley.engines.speaker.ModelSpeaker`.

    It also speaks text that is being written: :meth:`speak` a request that is not final, and once
    its first chunk is there, :meth:`more`.
    """

    languages: Sequence[str] = tuple(sorted(MULTILINGUAL))
    """Of the multilingual checkpoint; with another one, the model refuses all but ``en``."""

    def __init__(self, port: ModelClient, *, model: str = MODEL, timeout_s: float = 20.0) -> None:
        super().__init__(port, model=model, timeout_s=timeout_s)

    async def more(self, message: MoreText) -> None:
        """Add text; await it before the next.

        Raises:
            SessionNotFoundError: the request is not open, or no longer.
            InvalidMessageError: the text is too long, or in the wrong place.
            OverloadedError: too much is waiting; the same text may be added later.
            InferenceError: the model did not answer in time.
        """
        await self._tell(message)
