"""The engine of the model ``embeddings``: what it sends, and what it takes for an answer."""

import asyncio

import msgspec
import numpy as np
import pytest

from parley.embeddings.messages import EmbeddingSpace, EmbedReply, EmbedRequest
from parley.engines.registry import EMBEDDERS, find_engine
from parley.errors import InferenceError, InvalidInputError, OverloadedError
from parley.inference import struct_tensor, tensor_bytes, tensor_struct

SPACE = EmbeddingSpace(fingerprint="one", dimensions=2, max_tokens=8)


class Model:
    """Answers with the text's length on one of two axes."""

    def __init__(self):
        self.space = SPACE
        self.vector = None
        self.asked = []
        self.at_once = self.most = 0

    async def infer(self, request):
        text = tensor_bytes(request.inputs["TEXT"]).decode()
        self.asked.append((text, tensor_struct(request.inputs["REQUEST"], EmbedRequest).kind))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if text == "refused":
            raise OverloadedError("3 wait")
        vector = np.eye(2, dtype=np.float32)[len(text) % 2] if self.vector is None else self.vector
        reply = EmbedReply(space=self.space, tokens=len(text), is_truncated=text == "long")
        return {"EMBEDDING": vector[np.newaxis], "REPLY": struct_tensor(reply, batched=True)}


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def embedder(model):
    return find_engine(EMBEDDERS, "embeddings")(model, timeout_s=1)


async def test_vectors_come_in_the_order_of_the_texts_with_few_requests_at_once(model, embedder):
    texts = ["a" * count for count in range(1, 30)]
    found = await embedder.embed(texts, kind="passage")
    assert found.tolist() == [[0, 1] if len(text) % 2 else [1, 0] for text in texts]
    assert found.dtype == np.float32
    assert model.asked == [(text, "passage") for text in texts]
    assert model.most == 8


async def test_space_is_asked_for_once(model, embedder):
    assert await embedder.describe() == await embedder.describe() == SPACE
    assert len(model.asked) == 1


async def test_no_texts_give_no_vectors(embedder):
    assert (await embedder.embed([], kind="passage")).shape == (0, 2)


async def test_failure_of_one_text_is_raised_when_all_requests_have_ended(model, embedder):
    with pytest.raises(OverloadedError):
        await embedder.embed(["a", "refused", "c"], kind="passage")
    assert (len(model.asked), model.at_once) == (3, 0)


async def test_text_with_half_a_surrogate_pair_is_refused(embedder):
    with pytest.raises(InvalidInputError, match="surrogate"):
        await embedder.embed(["\ud800"], kind="query")


async def test_other_weights_than_before_are_an_error(model, embedder):
    await embedder.describe()
    model.space = msgspec.structs.replace(SPACE, fingerprint="two")
    with pytest.raises(InferenceError, match="other weights"):
        await embedder.embed(["a"], kind="query")
    assert (await embedder.describe()).fingerprint == "two"
    await embedder.embed(["a"], kind="query")


@pytest.mark.parametrize("vector", [[1, 0, 0], [0.5, 0.5], [0, 0], [np.nan, 1], [np.inf, 0]])
async def test_answer_that_is_no_vector_of_length_1_is_an_error(model, embedder, vector):
    model.vector = np.array(vector, np.float32)
    with pytest.raises(InferenceError, match="no vector of length 1"):
        await embedder.embed(["a"], kind="query")


async def test_truncated_texts_are_logged_without_their_words(embedder, caplog):
    await embedder.embed(["short", "long"], kind="passage")
    assert caplog.messages == ["1 of 2 texts have too many tokens: only their beginning counts"]
