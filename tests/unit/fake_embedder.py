"""An embedder for tests: texts are similar if they have words in common."""

import re
from hashlib import sha256

import numpy as np

from parley.embeddings.messages import EmbeddingSpace
from parley.errors import InvalidInputError


class FakeEmbedder:
    """Adds one of ``dimensions`` axes for each word; which one is the same in all processes.

    Attributes:
        error: raised by every call, where it is set.
        calls: texts and kind of each call of :meth:`embed`.
    """

    def __init__(self, dimensions=256, fingerprint="fake", max_tokens=256):
        self.space = EmbeddingSpace(fingerprint=fingerprint, dimensions=dimensions, max_tokens=max_tokens)
        self.error = None
        self.calls = []

    async def describe(self):
        if self.error is not None:
            raise self.error
        return self.space

    async def embed(self, texts, *, kind):
        self.calls.append((tuple(texts), kind))
        if self.error is not None:
            raise self.error
        vectors = np.zeros((len(texts), self.space.dimensions), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            words = re.findall(r"\w+", text.lower())[: self.space.max_tokens]
            if not words:
                raise InvalidInputError("the text has no words")
            for word in words:
                digest = sha256(word.encode()).digest()
                vector[int.from_bytes(digest[:4]) % self.space.dimensions] += 1
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors
