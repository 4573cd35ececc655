"""How much of an utterance is made at once: little at first, then more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from parley.errors import ModelLoadingError

# The first chunk of 12 tokens is 24 frames, of which 17 are held back: 140 ms of first audio.
DEFAULT_CHUNKS = (12, 13, 25, 50, 100)


@dataclass(frozen=True)
class ChunkSchedule:
    """The sizes of an utterance's chunks in tokens; the last one repeats.

    Where the chunks end does not depend on when tokens arrive: the same tokens always become
    the same audio.
    """

    sizes: tuple[int, ...] = DEFAULT_CHUNKS

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ModelLoadingError(f"chunk sizes {self.sizes} must be positive numbers of tokens")

    @classmethod
    def parse(cls, text: str) -> ChunkSchedule:
        """Read ``"10,15,25"``.

        Raises:
            ModelLoadingError: that is not a list of positive numbers.
        """
        try:
            return cls(tuple(int(size) for size in text.split(",")))
        except ValueError as error:
            raise ModelLoadingError(f"chunk sizes {text!r} must look like 10,15,25") from error

    def ends(self, tokens: int) -> list[int]:
        """Where the chunks of an utterance of so many tokens end, the last one at ``tokens``."""
        ends: list[int] = []
        end = 0
        while end < tokens:
            end = min(tokens, end + self.sizes[min(len(ends), len(self.sizes) - 1)])
            ends.append(end)
        return ends

    def complete(self, tokens: int) -> int:
        """The last end of a chunk that lies within the first ``tokens`` tokens; 0 if none does."""
        end = 0
        index = 0
        while (larger := end + self.sizes[min(index, len(self.sizes) - 1)]) <= tokens:
            end = larger
            index += 1
        return end

    def numbers(self, tokens: int) -> list[int]:
        """The number of each token's chunk, from 1; 0 is left for the prompt."""
        ends = self.ends(tokens)
        return [1 + bisect_right(ends, token) for token in range(tokens)]

    def starts(self, tokens: int) -> list[int]:
        """Where each token's chunk starts."""
        ends = [0, *self.ends(tokens)]
        return [ends[number - 1] for number in self.numbers(tokens)]


def parse_sizes(text: str, name: str) -> tuple[int, ...]:
    """Read a rising list of positive numbers such as ``"192,256,320"``; empty text is an empty list.

    Raises:
        ModelLoadingError: it is something else.
    """
    try:
        sizes: Sequence[int] = [int(size) for size in text.split(",")] if text else []
    except ValueError as error:
        raise ModelLoadingError(f"{name} {text!r} must look like 1,2,4") from error
    if list(sizes) != sorted(set(sizes)) or any(size < 1 for size in sizes):
        raise ModelLoadingError(f"{name} {text!r} must be rising positive numbers")
    return tuple(sizes)
