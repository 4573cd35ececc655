"""The sentence encoder: tokens, runs, pooling, and the graph that is made for the published weights."""

import json
import math
import shutil

import numpy as np
import pytest
from fake_session import FakeSession
from safetensors.numpy import load_file, save_file

from parley.embeddings.bert import make_graph
from parley.embeddings.encoder import MAX_BYTES, SentenceFolder, TextEncoder, TokenizedText
from parley.errors import InferenceError, InvalidInputError, ModelLoadingError
from parley.launcher.options import ROOT
from parley.runtime.onnx import open_session

TINY = ROOT / "models/tiny-embeddings"
erf = np.vectorize(math.erf)
PLAIN = {"query": "", "passage": ""}


@pytest.fixture(scope="module")
def tiny():
    return SentenceFolder(TINY, PLAIN)


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(TINY, tmp_path / "copy")


def encode(folder, texts, run_tokens=256):
    description = SentenceFolder(folder, PLAIN)
    session = open_session(folder / "model.safetensors", part=make_graph(folder, description.config))
    encoder = TextEncoder(session, takes_mean=description.takes_mean, run_tokens=run_tokens)
    return encoder.encode([description.tokenize(text.encode(), "passage") for text in texts])


def tokens(*ids):
    return TokenizedText(ids, is_truncated=False)


# --- tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b" \t\n", b"\x00\x07", "\u200b\u00a0".encode(), "\u0301".encode()])
def test_text_without_words_is_refused(tiny, text):
    with pytest.raises(InvalidInputError, match="nothing but blanks"):
        tiny.tokenize(text, "query")


def test_text_of_control_characters_behind_a_prefix_is_refused():
    folder = SentenceFolder(TINY, {"query": "query: ", "passage": ""})
    with pytest.raises(InvalidInputError, match="nothing but blanks"):
        folder.tokenize(b"\x07 ", "query")


def test_text_that_is_not_utf8_is_refused(tiny):
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        tiny.tokenize(b"caf\xe9", "query")


def test_text_of_too_many_bytes_is_refused(tiny):
    assert tiny.tokenize(b"a" * MAX_BYTES, "query").ids
    with pytest.raises(InvalidInputError, match="32769 bytes; it must have at most 32768"):
        tiny.tokenize(b"a" * (MAX_BYTES + 1), "query")


def test_text_of_too_many_tokens_is_truncated_and_reported(tiny):
    most = tiny.space.max_tokens - 2  # the network's own at both ends
    fits, longer = (tiny.tokenize(b"voice " * count, "query") for count in (most, most + 1))
    assert (len(fits.ids), fits.is_truncated) == (256, False)
    assert (len(longer.ids), longer.is_truncated) == (256, True)


def test_control_characters_within_a_text_do_not_count(tiny):
    assert tiny.tokenize(b"the\x00 voice\x1b", "query") == tiny.tokenize(b"the voice", "query")


def test_prefixes_are_written_before_their_kind_and_change_the_fingerprint(tiny):
    folder = SentenceFolder(TINY, {"query": "question: ", "passage": ""})
    assert folder.tokenize(b"voice", "query") == tiny.tokenize(b"question: voice", "query")
    assert folder.tokenize(b"voice", "passage") == tiny.tokenize(b"voice", "passage")
    assert folder.space.fingerprint != tiny.space.fingerprint


# --- runs and pooling ---------------------------------------------------------------------


def test_vectors_are_means_of_the_tokens_without_padding_and_of_length_1():
    session = FakeSession()
    found = TextEncoder(session, takes_mean=True, run_tokens=64).encode([tokens(3, 5), tokens(1, 1, 4, 2)])
    assert session.runs == [[[3, 5], [1, 1, 4, 2]]]
    expected = np.array([[4, 0.5, 0, 0], [2, 1.5, 0, 0]]) / [[16.25**0.5], [2.5]]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found.dtype == np.float32


def test_vector_is_the_first_token_where_the_pooling_says_so():
    found = TextEncoder(FakeSession(), takes_mean=False, run_tokens=64).encode([tokens(3, 5), tokens(7)])
    assert found == pytest.approx(np.array([[1, 0, 0, 0], [1, 0, 0, 0]]))


def test_runs_hold_no_more_tokens_than_allowed_and_at_least_one_text():
    session = FakeSession()
    texts = [tokens(1, 2), tokens(3, 4), tokens(5, 6, 7), tokens(*range(1, 10)), tokens(8)]
    assert len(TextEncoder(session, takes_mean=True, run_tokens=6).encode(texts)) == 5
    assert [[len(ids) for ids in run] for run in session.runs] == [[2, 2], [3], [9], [1]]


@pytest.mark.parametrize("values", [np.nan, np.inf, 0.0, RuntimeError("out of memory")])
def test_network_without_usable_values_is_an_error(values):
    session = FakeSession()
    session.values = values
    with np.errstate(invalid="ignore"), pytest.raises(InferenceError):
        TextEncoder(session, takes_mean=True, run_tokens=6).encode([tokens(1)])


# --- the network --------------------------------------------------------------------------


def test_graph_computes_what_the_formulas_of_bert_say(tiny):
    """In NumPy, in double precision."""
    text = "How do I book a table?"
    weights = {
        name: values.astype(np.float64) for name, values in load_file(TINY / "model.safetensors").items()
    }
    ids = tiny.tokenize(text.encode(), "passage").ids
    heads = tiny.config.num_attention_heads

    def norm(values, name):
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + tiny.config.layer_norm_eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(values, name):
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    state = weights["embeddings.word_embeddings.weight"][ids]
    state = state + weights["embeddings.position_embeddings.weight"][: len(ids)]
    state = norm(state + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(tiny.config.num_hidden_layers):
        name = f"encoder.layer.{layer}"
        query, key, value = (
            linear(state, f"{name}.attention.self.{part}").reshape(len(ids), heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = np.exp(query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1]))
        attended = (scores / scores.sum(-1, keepdims=True) @ value).swapaxes(0, 1).reshape(len(ids), -1)
        state = norm(
            state + linear(attended, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = linear(state, f"{name}.intermediate.dense")
        inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
        state = norm(state + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    expected = state.mean(0) / np.linalg.norm(state.mean(0))
    assert encode(TINY, [text])[0] == pytest.approx(expected, abs=1e-6)


def test_text_has_the_same_vector_alone_and_beside_longer_ones():
    texts = ["voice", "how to record a call with two channels", "tools"]
    together = encode(TINY, texts)
    alone = [encode(TINY, [text])[0] for text in texts]
    assert together == pytest.approx(np.array(alone), abs=1e-6)


def test_tiny_network_finds_texts_by_their_words():
    found = encode(TINY, ["a table for two", "book the table for two people", "rain in Paris"])
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", {"model_type": "roberta"}, "Invalid enum value 'roberta'"),
        ("config.json", {"hidden_act": "relu"}, "Invalid enum value 'relu'"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "the mean or the first token"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "the mean or the first token"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "cannot be used"),
        ("tokenizer.json", {"model": {}}, "cannot be used"),
    ],
)
def test_folder_with_another_network_is_refused_with_the_file(copy, file, change, said):
    path = copy / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelLoadingError, match=said) as caught:
        SentenceFolder(copy, PLAIN)
    assert file in str(caught.value)


def test_weights_in_half_precision_are_refused(copy, tiny):
    path = copy / "model.safetensors"
    save_file({name: values.astype(np.float16) for name, values in load_file(path).items()}, path)
    with pytest.raises(ModelLoadingError, match="the model has no embeddings"):
        make_graph(copy, tiny.config)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_file_that_is_not_safetensors_is_refused(copy, tiny, content):
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadingError, match="not a safetensors file"):
        make_graph(copy, tiny.config)


def test_file_that_is_too_short_for_its_header_is_refused(copy, tiny):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelLoadingError, match="cannot be loaded"):
        open_session(path, part=make_graph(copy, tiny.config))


def test_other_weights_have_another_fingerprint(copy, tiny):
    path = copy / "model.safetensors"
    changed = load_file(path)
    changed["embeddings.LayerNorm.bias"][0] += 1
    save_file(changed, path)
    assert SentenceFolder(copy, PLAIN).space.fingerprint != tiny.space.fingerprint
