"""OpenAI's ``/v1/embeddings``."""

import pytest
from openai import AsyncOpenAI

PATH = "/v1/embeddings"


async def ask(gateway, texts, **fields):
    body = {"model": "text-embedding-3-small", "input": texts, **fields}
    return await gateway.http.post(PATH, json=body)


async def test_each_text_has_a_vector(gateway):
    answer = (await ask(gateway, ["odd", "even"], user="u")).json()
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.0, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
        ],
        "model": "embeddings",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    await ask(gateway, "odd", model="embeddings", input_type="query")
    assert sorted(gateway.models.embedded) == [("even", "passage"), ("odd", "passage"), ("odd", "query")]


async def test_sdk_reads_vectors_of_base64(gateway):
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model="text-embedding-3-large", input=["odd", "even"])
    assert [one.embedding for one in answer.data] == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("texts", "fields", "param"),
    [
        ("odd", {"dimensions": 256}, "dimensions"),
        ("odd", {"encoding_format": "int8"}, "encoding_format"),
        ("odd", {"model": "qwen3"}, "model"),
        ("", {}, "input"),
        ([], {}, "input"),
        ([1, 2], {}, "input[0]"),
        (["a"] * 257, {}, "input"),
        (["odd", "far too long"], {}, "input"),
    ],
)
async def test_what_is_not_possible_is_refused(gateway, texts, fields, param):
    answer = await ask(gateway, texts, **fields)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param


async def test_text_that_the_model_refuses_is_the_clients_fault(gateway):
    answer = await ask(gateway, ["odd", "refused"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_message")
