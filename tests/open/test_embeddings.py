"""all-MiniLM-L6-v2 with its own weights, against the library that it was published for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from parley.embeddings.bert import make_graph
from parley.embeddings.encoder import SentenceFolder, TextEncoder
from parley.embeddings.files import FILES, WEIGHTS_FILE
from parley.launcher.options import ROOT
from parley.runtime.onnx import open_session
from parley.runtime.weights import MODELS_DIR_VARIABLE

FOLDER = Path(os.environ.get(MODELS_DIR_VARIABLE) or ROOT / "models") / "all-minilm-l6-v2"
MISSING = [name for name in FILES if not (FOLDER / name).is_file()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"without the weights: {', '.join(MISSING)}")
TEXTS = [
    "How do I book a table?",
    "Reservations for dinner are taken by phone.",
    "It will rain in Paris tomorrow.",
    "Naïve café, 東京, “quotes” & 3.14 %!",
    "word " * 400,
]


@pytest.fixture(scope="module")
def embed():
    folder = SentenceFolder(FOLDER, {"query": "", "passage": ""})
    session = open_session(FOLDER / WEIGHTS_FILE, part=make_graph(FOLDER, folder.config))
    encoder = TextEncoder(session, takes_mean=folder.takes_mean, run_tokens=2048)
    return lambda texts: encoder.encode([folder.tokenize(text.encode(), "query") for text in texts])


def test_vectors_are_those_of_transformers(embed, monkeypatch):
    # PyTorch takes the folder tests/triton for the package of that name.
    monkeypatch.setitem(sys.modules, "triton", None)
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    network = transformers.AutoModel.from_pretrained(FOLDER, local_files_only=True)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        states = network(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(means).numpy()
    assert embed(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_texts_are_similar_by_their_meaning(embed):
    found = embed(TEXTS)
    assert found[0] @ found[1] > 0.3 > found[0] @ found[2]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Is there somewhere to leave my car?", "Parking is behind the building and free for guests."),
        ("When do you close?", "We are open from 11 in the morning until 10 at night."),
        ("Do you have anything without meat?", "Vegetarian and vegan dishes are marked on the menu."),
        ("Can I bring my dog?", "Pets are welcome on the terrace."),
    ],
)
def test_answer_is_the_passage_that_is_most_similar_to_its_question(embed, question, answer):
    passages = [
        "Parking is behind the building and free for guests.",
        "We are open from 11 in the morning until 10 at night.",
        "Vegetarian and vegan dishes are marked on the menu.",
        "Pets are welcome on the terrace.",
        "Tables are held for 15 minutes.",
        "Card payments are accepted from five dollars.",
    ]
    scores = embed(passages) @ embed([question])[0]
    assert passages[int(np.argmax(scores))] == answer
