"""The vectors of texts from the real server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from rails import serve

from parley.engines.embeddings import ModelEmbedder
from parley.errors import InvalidInputError
from parley.inference import ModelRequest, text_tensor

PASSAGES = [
    "The weather in Paris is cold today.",
    "A table can be booked for two people.",
    "Calls are recorded with two channels.",
    "The gateway needs a key.",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("embeddings"), ("embeddings",)) as running:
        yield running


async def test_passages_are_found_by_a_question_and_have_one_space(port):
    embedder = ModelEmbedder(port)
    space = await embedder.describe()
    passages = await embedder.embed(PASSAGES, kind="passage")
    assert passages.shape == (4, space.dimensions)
    (question,) = await embedder.embed(["Is a table booked for two?"], kind="query")
    assert int(np.argmax(passages @ question)) == 1


async def test_sessions_at_once_get_what_each_gets_alone(port):
    texts = [f"{passage} {'the tools of the agent ' * count}" for count in range(8) for passage in PASSAGES]
    alone = await ModelEmbedder(port).embed(texts, kind="passage")
    together = await asyncio.gather(*(ModelEmbedder(port).embed(texts, kind="passage") for _ in range(4)))
    assert all(found == pytest.approx(alone, abs=1e-5) for found in together)


async def test_many_texts_do_not_fill_the_queue(port):
    found = await ModelEmbedder(port).embed([f"number {count}" for count in range(500)], kind="passage")
    assert len(found) == 500


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b" \x00\x1b", b"a" * 40_000])
async def test_text_that_cannot_be_represented_is_refused_with_its_code(port, text):
    request = ModelRequest("embeddings", {"TEXT": text_tensor(text, batched=True)}, ("EMBEDDING",))
    with pytest.raises(InvalidInputError):
        await port.infer(request)
    assert len(await ModelEmbedder(port).embed(["and the next one is served"], kind="query")) == 1
