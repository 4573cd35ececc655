"""A reader whose texts have words with times, and that can read several stretches at once."""

from __future__ import annotations

from parley.asr.reader import Reader, RecognizedText, RunLimits
from parley.errors import InferenceError
from parley.protocol import Word

MS = 16


class LoudReader(Reader):
    """A word for each loud stretch of at least 100 ms: ``w`` and its length in tens of milliseconds."""

    languages, longest_ms, spelled = ("en",), 30_000, ("<unk>",)

    def __init__(self, limits=None):
        self.run_limits = limits or RunLimits()
        self.runs = []
        self.failing = set()

    def read_together(self, stretches, stop):
        lengths = [len(stretch.audio) // MS for stretch in stretches]
        self.runs.append(lengths)
        if self.failing & set(lengths):
            raise InferenceError("it broke")
        return [self.read_one(stretch) for stretch in stretches]

    def read_one(self, stretch):
        loud = [
            bool(abs(stretch.audio[at : at + MS]).max() > 1_000) for at in range(0, len(stretch.audio), MS)
        ]
        words, begin = [], None
        for at, own in enumerate([*loud, False]):
            if own and begin is None:
                begin = at
            elif not own and begin is not None:
                if at - begin >= 100:
                    start = stretch.start_ms + begin
                    text = f"w{(at - begin) // 10}"
                    words.append(
                        Word(text=text, start_ms=start, end_ms=stretch.start_ms + at, confidence=0.5)
                    )
                begin = None
        text = " ".join(word.text for word in words)
        return RecognizedText(text, 0.5 if words else 0.0, words=tuple(words))
