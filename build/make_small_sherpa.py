"""Make small networks as sherpa-onnx packs them, and note what sherpa-onnx makes of recordings with them.

    .venv-export/bin/python build/make_small_sherpa.py

Writes ``tests/data/sherpa_onnx``: for each family a folder with the files that sherpa-onnx takes, and
``expected.json`` with its tokens and their times for a few of the recordings in ``tests/data/asr_eval``. The
networks have the inputs, outputs and metadata of published ones, but one layer of random weights: their
tokens are no words, and follow from the features of each frame. So equal tokens need equal features.
Needs the packages ``numpy``, ``onnx``, ``sherpa_onnx`` and ``soundfile``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import sherpa_onnx
import soundfile
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
CLIPS = ROOT / "tests/data/asr_eval"
OUT = ROOT / "tests/data/sherpa_onnx"
RECORDINGS = (0, 7, 14, 21, 28)
RATE = 16_000
OPSET = 17
WORDS = ("▁HE", "LLO", "▁THE", "RE", "▁ON", "E", "S", "▁TWO", "ING", "▁A", "B", "▁C", "D", "'", "▁")
CHINESE = ("<blank>", "<s>", "</s>", "你", "好", "hel@@", "lo", "one", "two", "是", "的", "a@@", "b", "<unk>")
SENSE = ("<unk>", "<s>", "</s>", "▁the", "▁one", "ing", "s", "你", "好", "▁", ".", "▁two", "<|zh|>", "<|en|>")
MOODS = ("<|NEUTRAL|>", "<|Speech|>", "<|withitn|>", "<|woitn|>")
BANDS, STACKED, JOINT = 80, 560, 12
Weights = Mapping[str, NDArray[Any]]


class Graph:
    """An ONNX graph that grows by one operator at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, values: Any, kind: type = np.int64) -> str:
        """The name of a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        """The name of random numbers."""
        return self.constant(scale * self.rng.standard_normal(shape), np.float32)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append an operator; the name of its output."""
        name = name or f"value_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def every(self, value: str, step: int, axis: int = 1) -> str:
        """Each ``step``-th element of an axis."""
        arguments = [[0], [np.iinfo(np.int64).max], [axis], [step]]
        return self.add("Slice", value, *(self.constant(each) for each in arguments))

    def ceil(self, lengths: str, step: int, name: str) -> str:
        """Lengths after :meth:`every`."""
        more = self.add("Add", lengths, self.constant([step - 1]))
        return self.add("Div", more, self.constant([step]), name=name)

    def save(
        self, file: Path, inputs: Sequence[Any], outputs: Sequence[Any], metadata: Mapping[str, Any]
    ) -> None:
        """Write the file."""
        graph = helper.make_graph(self._nodes, file.stem, inputs, outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
        onnx.checker.check_model(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, file)


def tensor(name: str, kind: int, *shape: int | str) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def write_tokens(folder: Path, symbols: Sequence[str]) -> int:
    """Write ``tokens.txt``; how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{symbol} {number}\n" for number, symbol in enumerate(symbols)]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return len(symbols)


def make_nemo_ctc(folder: Path) -> None:
    """NeMo's CTC: normalised features, the blank at the end."""
    size = write_tokens(folder, ["<unk>", *WORDS, "<blk>"])
    graph = Graph(1)
    frames = graph.every(graph.add("Transpose", "audio_signal", perm=[0, 2, 1]), 8)
    scores = graph.add("MatMul", frames, graph.random(BANDS, size))
    bias = np.zeros(size)
    bias[-1] = 14.0
    graph.add(
        "LogSoftmax", graph.add("Add", scores, graph.constant(bias, np.float32)), name="logprobs", axis=2
    )
    # An input that no operator takes would be left out of what the session shows.
    graph.add("Identity", "length", name="lengths")
    graph.save(
        folder / "model.onnx",
        [tensor("audio_signal", FLOAT, "N", BANDS, "T"), tensor("length", INT64, "N")],
        [tensor("logprobs", FLOAT, "N", "F", size), tensor("lengths", INT64, "N")],
        {
            "model_type": "EncDecCTCModelBPE",
            "vocab_size": size - 1,
            "normalize_type": "per_feature",
            "subsampling_factor": 8,
        },
    )


def centred(graph: Graph, value: str, mean: float, deviation: float) -> str:
    """Log energies of about the size that networks have learned from."""
    moved = graph.add("Sub", value, graph.constant([mean], np.float32))
    return graph.add("Div", moved, graph.constant([deviation], np.float32))


def make_zipformer_ctc(folder: Path) -> None:
    """Icefall's CTC: the blank at the beginning."""
    size = write_tokens(folder, ["<blk>", "<sos/eos>", "<unk>", *WORDS])
    graph = Graph(2)
    frames = graph.every(centred(graph, "x", -8.0, 4.0), 4)
    bias = np.zeros(size)
    bias[0], bias[1:3] = 12.0, -100.0
    scores = graph.add("MatMul", frames, graph.random(BANDS, size))
    graph.add(
        "LogSoftmax", graph.add("Add", scores, graph.constant(bias, np.float32)), name="log_probs", axis=2
    )
    graph.ceil("x_lens", 4, name="log_probs_len")
    graph.save(
        folder / "model.onnx",
        [tensor("x", FLOAT, "N", "T", BANDS), tensor("x_lens", INT64, "N")],
        [tensor("log_probs", FLOAT, "N", "F", size), tensor("log_probs_len", INT64, "N")],
        {"model_type": "zipformer2_ctc", "version": 1, "model_author": "k2-fsa"},
    )


def make_zipformer(folder: Path) -> None:
    """Icefall's transducer, whose decoder sees the last two tokens."""
    size = write_tokens(folder, ["<blk>", "<sos/eos>", "<unk>", *WORDS])
    encoder = Graph(3)
    frames = encoder.every(centred(encoder, "x", -8.0, 4.0), 4)
    encoder.add("MatMul", frames, encoder.random(BANDS, JOINT, scale=0.2), name="encoder_out")
    encoder.ceil("x_lens", 4, name="encoder_out_lens")
    encoder.save(
        folder / "encoder.onnx",
        [tensor("x", FLOAT, "N", "T", BANDS), tensor("x_lens", INT64, "N")],
        [tensor("encoder_out", FLOAT, "N", "F", JOINT), tensor("encoder_out_lens", INT64, "N")],
        {"model_type": "zipformer2", "version": 1, "model_author": "k2-fsa"},
    )
    decoder = Graph(4)
    # As icefall's: what comes before the first token is -1, and has no embedding.
    known = decoder.add("GreaterOrEqual", "y", decoder.constant([0]))
    rows = decoder.add(
        "Gather", decoder.random(size, JOINT), decoder.add("Max", "y", decoder.constant([0])), axis=0
    )
    weight = decoder.add("Cast", known, to=FLOAT)
    masked = decoder.add("Mul", rows, decoder.add("Unsqueeze", weight, decoder.constant([2])))
    flat = decoder.add("Reshape", masked, decoder.constant([-1, 2 * JOINT]))
    decoder.add("MatMul", flat, decoder.random(2 * JOINT, JOINT, scale=0.2), name="decoder_out")
    decoder.save(
        folder / "decoder.onnx",
        [tensor("y", INT64, "N", 2)],
        [tensor("decoder_out", FLOAT, "N", JOINT)],
        {"context_size": 2, "vocab_size": size},
    )
    joiner = Graph(5)
    joined = joiner.add("Tanh", joiner.add("Add", "encoder_out", "decoder_out"))
    bias = np.zeros(size)
    bias[0], bias[1] = 3.0, -100.0
    scores = joiner.add("MatMul", joined, joiner.random(JOINT, size))
    joiner.add("Add", scores, joiner.constant(bias, np.float32), name="logit")
    joiner.save(
        folder / "joiner.onnx",
        [tensor("encoder_out", FLOAT, "N", JOINT), tensor("decoder_out", FLOAT, "N", JOINT)],
        [tensor("logit", FLOAT, "N", size)],
        {"joiner_dim": JOINT},
    )


def normalisation(mean: float, deviation: float) -> dict[str, Any]:
    """Metadata of FunASR's front end."""
    return {
        "lfr_window_size": STACKED // BANDS,
        "lfr_window_shift": 6,
        "neg_mean": ",".join([str(-mean)] * STACKED),
        "inv_stddev": ",".join([str(1 / deviation)] * STACKED),
    }


def make_paraformer(folder: Path) -> None:
    """A token for every third frame, with the predictor's peaks; frames of zeros make the end."""
    size = write_tokens(folder, CHINESE)
    end = CHINESE.index("</s>")
    graph = Graph(6)
    longer = graph.add("Pad", "speech", graph.constant([0, 0, 0, 0, 3, 0]))
    weights = graph.rng.standard_normal((STACKED, size))
    bias = np.full(size, -100.0)
    bias[3:-1] = 0.0
    weights[:, [0, 1, end, -1]], bias[end] = 0.0, 0.5
    scores = graph.add("MatMul", graph.every(longer, 3), graph.constant(weights, np.float32))
    graph.add("LogSoftmax", graph.add("Add", scores, graph.constant(bias, np.float32)), name="logits", axis=2)
    more = graph.add("Add", "speech_lengths", graph.constant([5], np.int32))
    graph.add("Div", more, graph.constant([3], np.int32), name="token_num")
    one = graph.every(graph.add("Mul", "logits", graph.constant([0.0], np.float32)), size, axis=2)
    peaks = np.zeros((1, 1, 9))
    peaks[0, 0, 4] = 1.0
    # None in what is behind a shorter row.
    length = graph.add("Squeeze", graph.add("Shape", "logits", start=1, end=2), graph.constant([0]))
    places = graph.add("Range", graph.constant(0), length, graph.constant(1))
    count = graph.add("Unsqueeze", graph.add("Cast", "token_num", to=INT64), graph.constant([1]))
    real = graph.add("Cast", graph.add("Less", places, count), to=FLOAT)
    fired = graph.add(
        "Mul", graph.add("Unsqueeze", real, graph.constant([2])), graph.constant(peaks, np.float32)
    )
    rows = graph.add("Add", one, fired)
    graph.add("Reshape", rows, graph.constant([0, -1]), name="us_cif_peak")
    graph.add("Identity", "us_cif_peak", name="us_alphas")
    graph.save(
        folder / "model.onnx",
        [tensor("speech", FLOAT, "N", "T", STACKED), tensor("speech_lengths", INT32, "N")],
        [
            tensor("logits", FLOAT, "N", "L", size),
            tensor("token_num", INT32, "N"),
            tensor("us_alphas", FLOAT, "N", "P"),
            tensor("us_cif_peak", FLOAT, "N", "P"),
        ],
        {"vocab_size": size, "model_type": "paraformer", **normalisation(11.0, 4.0)},
    )


def make_sense_voice(folder: Path) -> None:
    """CTC behind four frames that answer what the language and the form say."""
    symbols = (*SENSE, *MOODS)
    size = write_tokens(folder, symbols)
    graph = Graph(7)
    answers = np.full((16, 4, size), -10.0)
    numbers = [symbols.index(each) for each in ("<|zh|>", *MOODS[:3])]
    answers[:, range(4), numbers] = 0.0
    answers[4, 0, [symbols.index("<|zh|>"), symbols.index("<|en|>")]] = (-10.0, 0.0)
    answers[15, 3, [symbols.index("<|withitn|>"), symbols.index("<|woitn|>")]] = (-10.0, 0.0)
    questions = graph.add("Gather", graph.constant(answers, np.float32), "language", axis=0)
    form = graph.add("Gather", graph.constant(answers[:, 3:], np.float32), "text_norm", axis=0)
    first = [graph.constant(each) for each in ([0], [3], [1])]
    bias = np.full(size, -100.0)
    bias[0], bias[3:12] = 25.0, 0.0
    scores = graph.add("MatMul", "x", graph.random(STACKED, size))
    spoken = graph.add("Add", scores, graph.constant(bias, np.float32))
    graph.add("Concat", graph.add("Slice", questions, *first), form, spoken, name="logits", axis=1)
    graph.add("Identity", "x_length", name="lengths")
    languages = {"auto": 0, "zh": 3, "en": 4, "yue": 7, "ja": 11, "ko": 12}
    graph.save(
        folder / "model.onnx",
        [
            tensor("x", FLOAT, "N", "T", STACKED),
            *(tensor(name, INT32, "N") for name in ("x_length", "language", "text_norm")),
        ],
        [tensor("logits", FLOAT, "N", "F", size), tensor("lengths", INT32, "N")],
        {
            "model_type": "sense_voice_ctc",
            "vocab_size": size,
            "comment": "small",
            "normalize_samples": 0,
            "with_itn": 14,
            "without_itn": 15,
            **{f"lang_{name}": number for name, number in languages.items()},
            **normalisation(11.0, 4.0),
        },
    )


def recognizer(family: str, folder: Path) -> Any:
    """sherpa-onnx with the networks of a folder."""
    tokens, model = str(folder / "tokens.txt"), str(folder / "model.onnx")
    make = sherpa_onnx.OfflineRecognizer
    if family == "zipformer":
        roles = {role: str(folder / f"{role}.onnx") for role in ("encoder", "decoder", "joiner")}
        return make.from_transducer(**roles, tokens=tokens)
    if family == "sense_voice":
        return make.from_sense_voice(model=model, tokens=tokens, language="en", use_itn=True)
    return getattr(make, f"from_{family}")(model, tokens=tokens)


def expect(family: str, folder: Path) -> list[dict[str, Any]]:
    """What sherpa-onnx makes of the recordings."""
    program = recognizer(family, folder)
    entries = json.loads((CLIPS / "manifest.json").read_text())
    found: list[dict[str, Any]] = []
    for number in RECORDINGS:
        file = entries[number]["file"]
        stream = program.create_stream()
        stream.accept_waveform(RATE, soundfile.read(CLIPS / file, dtype="float32")[0])
        program.decode_stream(stream)
        result = stream.result
        times = [round(1000 * time) for time in result.timestamps]
        found.append({"file": file, "text": result.text, "tokens": list(result.tokens), "times_ms": times})
    return found


FAMILIES = {
    "nemo_ctc": make_nemo_ctc,
    "zipformer_ctc": make_zipformer_ctc,
    "zipformer": make_zipformer,
    "paraformer": make_paraformer,
    "sense_voice": make_sense_voice,
}


def main() -> None:
    """Write all files."""
    expected: dict[str, Any] = {"sherpa_onnx": sherpa_onnx.__version__}
    for family, make in FAMILIES.items():
        make(OUT / family)
        (OUT / family / "recognizer.json").write_text(json.dumps({"family": family}) + "\n")
        expected[family] = expect(family, OUT / family)
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in expected.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (OUT / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
