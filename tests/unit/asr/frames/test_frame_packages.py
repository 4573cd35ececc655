"""Files of packages: symbols, metadata, and those that do not go together."""

from __future__ import annotations

import shutil

import pytest
from frame_fakes import FAMILIES, FOLDERS, Tensor, changing, load

from parley.asr.families import load_model
from parley.asr.frames.tokens import find_blank, read_symbols, to_vocabulary
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.onnx import open_session

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture
def symbols(tmp_path):
    def read(text):
        (tmp_path / "tokens.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_symbols(tmp_path / "tokens.txt")

    return read


def test_a_line_is_a_symbol_and_its_id(symbols):
    # Ids in any order, a space that is nothing, an ideographic space, and the ends of lines of Windows.
    assert symbols("b 1\r\na 0\r\n2\r\n\u3000 3\n4 4\n\n") == ("a", "b", " ", "\u3000", "4")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a 0\nb 2\n", "the ids of 2 symbols are not 0 to 1"),
        ("a 0\nb 0\n", "'b 0' is not a symbol and an id of its own"),
        ("a 0\nb\n", "'b' is not"),
        ("a b 0\n", "'a b 0' is not"),
        ("a -1\n", "'a -1' is not"),
        ("", "has no symbols"),
        (b"\xff 0\n", "cannot be read"),
    ],
)
def test_a_file_of_no_symbols_is_refused(symbols, text, problem):
    with pytest.raises(ModelLoadingError, match=problem):
        symbols(text)


def test_the_blank_has_one_of_three_names():
    assert find_blank(("a", "<blk>")) == 1
    assert find_blank(("<eps>", "a")) == 0
    assert find_blank(("<s>", "<blank>")) == 1
    with pytest.raises(ModelLoadingError, match="no blank: none of <blk>, <eps>, <blank>"):
        find_blank(("<b>", "a"))


def said(symbols, *chosen):
    return to_vocabulary(tuple(symbols)).text([symbols.index(symbol) for symbol in chosen])


def test_symbols_are_words_characters_or_bytes():
    assert said(["<blk>", "▁Hi", "▁there", "'s", "<unk>"], "▁Hi", "<unk>", "▁there", "'s") == "Hi there's"
    assert said([" ", "h", "i", "<blk>"], "h", "i", " ", "<blk>", "i") == "hi i"
    assert said(["<blk>", "▁你", *BYTES], "▁你", "<0xE5>", "<0xA5>", "<0xBD>", "<0xE5>") == "你好"
    assert said(["<blk>", "SIL", "a"], "a", "SIL", "a") == "aa"


def test_icefalls_alphabet_of_bytes_is_read():
    # From sherpa-onnx's table. "你" is E4 BD A0, "好" E5 A5 BD.
    spelled = {"E4": "\u018b", "BD": "\u0163", "A0": "\u0145", "E5": "\u018c", "A5": "\u014b"}
    you, good = ("".join(spelled[byte] for byte in text.split()) for text in ("E4 BD A0", "E5 A5 BD"))
    symbols = ["<blk>", f"▁{you}", good[:1], good[1:], "▁HI", "<unk>"]
    assert said(symbols, f"▁{you}", good[:1], good[1:], "▁HI") == "你好 HI"
    assert said(["<blk>", "▁Été", "▁a"], "▁Été") == "Été", "which has no byte that begins a character"


def test_a_vocabulary_without_small_letters_writes_small_ones():
    assert said(["<blk>", "▁HELLO", "▁世", "'"], "▁HELLO", "▁世", "'") == "hello 世'"
    assert said(["<blk>", "▁HELLO", "▁world"], "▁HELLO", "▁world") == "HELLO world"


MODEL = "model.onnx"
METADATA = [
    *(
        ("nemo_ctc", MODEL, key)
        for key in ("model_type", "normalize_type", "subsampling_factor", "vocab_size")
    ),
    ("zipformer_ctc", MODEL, "model_type"),
    *(("zipformer", "decoder.onnx", key) for key in ("context_size", "vocab_size")),
    *(
        ("paraformer", MODEL, key)
        for key in ("vocab_size", "lfr_window_size", "lfr_window_shift", "neg_mean", "inv_stddev")
    ),
    *(("sense_voice", MODEL, key) for key in ("lang_yue", "with_itn", "normalize_samples", "neg_mean")),
]


@pytest.mark.parametrize(("family", "file", "key"), METADATA)
def test_missing_metadata_is_named(family, file, key):
    with pytest.raises(ModelLoadingError, match=f"the metadata of {file} has no {key}") as caught:
        load(family, changing(file, metadata={key: None}))
    assert caught.value.code == "model_loading_failed"


@pytest.mark.parametrize(
    ("family", "file", "metadata", "problem"),
    [
        (
            "nemo_ctc",
            MODEL,
            {"model_type": "EncDecRNNTBPEModel"},
            "of the type EncDecRNNTBPEModel; the family",
        ),
        ("nemo_ctc", MODEL, {"is_giga_am": "1"}, "of GigaAM"),
        ("nemo_ctc", MODEL, {"normalize_type": "all_features"}, "normalises features by all_features"),
        ("nemo_ctc", MODEL, {"subsampling_factor": "0"}, "must be a number from 1 on"),
        ("nemo_ctc", MODEL, {"vocab_size": "1024"}, "has 1024 tokens, and .* 17"),
        ("zipformer_ctc", MODEL, {"model_type": "wenet_ctc"}, "the family zipformer_ctc has zipformer2_ctc"),
        ("zipformer", "decoder.onnx", {"vocab_size": "500"}, "has 500 tokens, and .* 18"),
        ("zipformer", "decoder.onnx", {"context_size": "3"}, "has 2 tokens; expected are 3"),
        ("paraformer", MODEL, {"vocab_size": "8404"}, "has 8404 tokens, and .* 14"),
        ("paraformer", MODEL, {"lfr_window_size": "5"}, "5 frames of 80 bands are 400"),
        ("paraformer", MODEL, {"neg_mean": "1,2,x"}, "neg_mean .* is not a list of numbers"),
        ("paraformer", MODEL, {"inv_stddev": "1,nan"}, "inv_stddev .* is not a list of numbers"),
        ("paraformer", MODEL, {"lfr_window_shift": "six"}, "lfr_window_shift .* is 'six'"),
        ("sense_voice", MODEL, {"blank_id": "99"}, "tokens"),
        ("sense_voice", MODEL, {"vocab_size": "25055"}, "has 25055 tokens"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(family, file, metadata, problem):
    with pytest.raises(ModelLoadingError, match=problem):
        load(family, changing(file, metadata=metadata))


LENGTHS = Tensor("lengths", ["N"], "tensor(int64)")
SHAPES = [
    ("nemo_ctc", MODEL, {"inputs": [Tensor("audio_signal", ["N", 80, "T"])]}, "takes audio_signal and has"),
    ("nemo_ctc", MODEL, {"outputs": [Tensor("logprobs", ["N", "T", 9])]}, "has 9 tokens; expected are 17"),
    (
        "zipformer_ctc",
        MODEL,
        {"inputs": [Tensor("x", ["N", "T", 40]), LENGTHS]},
        "has 40 features; expected are 80",
    ),
    (
        "zipformer",
        "encoder.onnx",
        {"inputs": [Tensor("x", ["N", "T", 80]), LENGTHS, Tensor("cached_key", ["N"])]},
        "it must take 2 inputs .* is it one that streams",
    ),
    (
        "zipformer",
        "joiner.onnx",
        {"inputs": [Tensor("encoder_out", [1, 12]), Tensor("decoder_out", [1, 12])]},
        "must take any number of rows",
    ),
    (
        "paraformer",
        MODEL,
        {"inputs": [Tensor("speech", ["N", "T", 400]), LENGTHS]},
        "400 features; expected are 560",
    ),
    ("sense_voice", MODEL, {"inputs": [Tensor("x", ["N", "T", 560]), LENGTHS]}, "it must take 4 inputs"),
]


@pytest.mark.parametrize(("family", "file", "changes", "problem"), SHAPES)
def test_networks_of_another_shape_are_refused(family, file, changes, problem):
    with pytest.raises(ModelLoadingError, match=problem):
        load(family, changing(file, **changes))


@pytest.fixture
def folder(tmp_path):
    def copy(family, tokens=None):
        shutil.copytree(FOLDERS / family, tmp_path / family)
        if tokens is not None:
            (tmp_path / family / "tokens.txt").write_text(tokens)
        return tmp_path / family

    return copy


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_is_missing_is_named(folder, family):
    path = folder(family)
    (path / "tokens.txt").unlink()
    with pytest.raises(WeightsNotFoundError, match=r"without tokens\.txt"):
        load_model(path, family, open_session)


@pytest.mark.parametrize(
    ("family", "names", "problem"),
    [
        ("nemo_ctc", [f"t{n}" for n in range(17)], "no blank"),
        ("zipformer_ctc", [f"t{n}" for n in range(18)], "no blank"),
        (
            "zipformer",
            ["a", "<blk>", *(f"t{n}" for n in range(16))],
            "begins with 'a', and not with the blank",
        ),
        ("paraformer", ["<blank>", *(f"t{n}" for n in range(13))], "has no </s>"),
        ("paraformer", ["</s>", *(f"t{n}" for n in range(13))], "no blank"),
        ("sense_voice", ["<unk>"], "has 18 tokens, and .* 1"),
        ("zipformer_ctc", ["<blk>"], "has 18 tokens; expected are 1"),
    ],
)
def test_symbols_that_do_not_fit_the_network_are_refused(folder, family, names, problem):
    tokens = "".join(f"{name} {number}\n" for number, name in enumerate(names))
    with pytest.raises(ModelLoadingError, match=problem):
        load_model(folder(family, tokens), family, open_session)


def test_languages_are_said_only_where_the_files_do_not_say_them(folder):
    path = folder("sense_voice")
    (path / "recognizer.json").write_text('{"family": "sense_voice", "languages": "de"}')
    with pytest.raises(ModelLoadingError, match="sense_voice has no de"):
        load_model(path, "moonshine", open_session)
    (path / "recognizer.json").write_text('{"family": "whisper", "languages": "de"}')
    with pytest.raises(ModelLoadingError, match="has languages; the family whisper has"):
        load_model(path, "moonshine", open_session)
