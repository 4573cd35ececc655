"""The files of an export: their layout, precision and origin."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
from nemo.collections.asr.models import ASRModel
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from checkpoints import NemoEntry, Precision
from comparison import ExportError
from nemo_export import chunks, graphs, prompts

Half = Literal["fp16", "bf16"]
_TYPES = {"fp16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
# ONNX Runtime has convolutions in fp16 for GPUs, but not in bf16.
_OPERATORS = {"fp16": {"MatMul", "Gemm", "Conv"}, "bf16": {"MatMul", "Gemm"}}
ENCODER = "encoder-model.onnx"
DECODER = "decoder_joint-model.onnx"
WEIGHTS = "encoder.weights"
_SILENCE = round(math.log(2**-24), 4)
"""Log-mel energy of silence."""


def to_int8(path: Path) -> onnx.ModelProto:
    """The graph at ``path`` with matrix products in eight bits.

    Weights are rounded to signed integers, activations when the graph runs. Convolutions stay as
    they are: quantised they are slower than in single precision.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "int8.onnx"
        quantize_dynamic(
            path,
            out,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )
        return graphs.read(out)


def to_half(model: onnx.ModelProto, half: Half, *, emulate: bool = False) -> onnx.ModelProto:
    """Make products with weights in half precision; ``model`` is changed and returned.

    Args:
        model: in single precision.
        half: the type.
        emulate: round to the type, but compute in single precision, which is what a GPU does inside
            of a product. CPUs can run this, and not all of them the other.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = [name for name in node.input[1:] if name in weights]
        if node.op_type in _OPERATORS[half] and own:
            # A weight that others use too stays as it is, and is rounded on its way in.
            stored = {name for name in own if uses[name] == 1}
            for name in stored:
                _round(weights[name], _TYPES[half][1])
            nodes += _around(node, stored, _TYPES[half][0], emulate=emulate)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _around(node: onnx.NodeProto, stored: set[str], kind: int, *, emulate: bool) -> list[onnx.NodeProto]:
    """A product between casts: into half precision before it, and out of it after it."""
    before: list[onnx.NodeProto] = []

    def cast(source: str, target: str, to: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [target], to=to)

    for index, name in enumerate(node.input):
        source = name
        if name not in stored:
            source = f"{node.name}.{index}.half"
            before.append(cast(name, source, kind))
        if emulate:
            before.append(cast(source, f"{node.name}.{index}.single", TensorProto.FLOAT))
            source = f"{node.name}.{index}.single"
        node.input[index] = source
    output = node.output[0]
    node.output[0] = f"{output}.half"
    if not emulate:
        return [*before, node, cast(f"{output}.half", output, TensorProto.FLOAT)]
    rounded = cast(f"{output}.half", f"{output}.rounded", kind)
    return [*before, node, rounded, cast(f"{output}.rounded", output, TensorProto.FLOAT)]


def _round(tensor: onnx.TensorProto, dtype: type) -> None:
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))


def encoder_files(entry: NemoEntry) -> dict[int, str]:
    """Names of the encoders by look-ahead; an offline model has one."""
    return {r: f"encoder-r{r}.onnx" for r in entry.look_aheads} if entry.streaming else {0: ENCODER}


def export(
    model: ASRModel,
    entry: NemoEntry,
    folder: Path,
    pack: Callable[[onnx.ModelProto], None] = lambda _: None,
) -> None:
    """Write a model in single precision.

    Raises:
        ExportError: it is not of the kind that the entry says.
    """
    _check_kind(model, entry)
    (folder / "vocab.txt").write_text(
        "".join(f"{token} {index}\n" for index, token in enumerate([*model.tokenizer.vocab, "<blk>"])),
        encoding="utf-8",
    )
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary)

        def encoders() -> Iterator[tuple[Path, onnx.ModelProto]]:
            for look_ahead, name in encoder_files(entry).items():
                if entry.streaming:
                    use_look_ahead(model, look_ahead)
                    model.set_export_config({"cache_support": "True"})
                model.export(str(made / "model.onnx"))
                encoder = graphs.read(made / ENCODER)
                if entry.streaming:
                    sizes = _streaming_sizes(model, entry)
                    encoder = chunks.specialise(
                        encoder,
                        frames=sizes["history_frames"] + sizes["chunk_frames"][str(look_ahead)],
                        caches={cache: sizes[cache] for cache in ("cache_last_channel", "cache_last_time")},
                    )
                    if prompts.dictionary(model):
                        prompts.add_prompt(encoder, model)
                pack(encoder)
                yield folder / name, encoder

        _save(entry, encoders(), folder)
        decoder = graphs.read(made / DECODER)
    pack(decoder)
    onnx.save(decoder, folder / DECODER)
    config = _sizes(model, entry)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def convert(entry: NemoEntry, fp32: Path, folder: Path, to: Precision, *, emulate: bool = False) -> None:
    """Write the export ``fp32`` in another precision."""

    def converted(name: str) -> onnx.ModelProto:
        if to == "int8":
            return to_int8(fp32 / name)
        assert to != "fp32"
        return to_half(graphs.read(fp32 / name), to, emulate=emulate)

    for name in ("vocab.txt", "config.json"):
        (folder / name).write_bytes((fp32 / name).read_bytes())
    _save(entry, ((folder / name, converted(name)) for name in encoder_files(entry).values()), folder)
    onnx.save(converted(DECODER), folder / DECODER)


def _save(entry: NemoEntry, encoders: Iterable[tuple[Path, onnx.ModelProto]], folder: Path) -> None:
    if entry.streaming:
        graphs.save_shared(encoders, folder / WEIGHTS)
        return
    for path, encoder in encoders:
        graphs.save(encoder, path)


def use_look_ahead(model: ASRModel, frames: int) -> None:
    """Let a streaming model wait for ``frames`` encoder frames."""
    left = model.encoder.att_context_size_all[0][0]
    model.encoder.set_default_att_context_size([left, frames])


def _check_kind(model: ASRModel, entry: NemoEntry) -> None:
    durations = _durations(model)
    if bool(durations) != (entry.kind == "tdt"):
        raise ExportError(f"{entry.name} is of kind {entry.kind}, but its durations are {list(durations)}")
    there = {context[1] for context in model.encoder.att_context_size_all}
    if missing := set(entry.look_aheads) - there:
        raise ExportError(f"{entry.name} was not trained for look-aheads of {missing}, only for {there}")
    if prompts.dictionary(model) and not entry.streaming:
        raise ExportError(f"{entry.name} has language prompts: only a streaming model is served with them")
    if entry.streaming and model.encoder.att_context_style != "chunked_limited":
        raise ExportError(f"{entry.name} is not cache-aware: its attention is not in chunks")


def _durations(model: ASRModel) -> tuple[int, ...]:
    return tuple(model.cfg.decoding.get("durations") or ())


def _sizes(model: ASRModel, entry: NemoEntry) -> dict[str, Any]:
    """What ``config.json`` says."""
    front = model.cfg.preprocessor
    rate = int(front.sample_rate)
    network = model.decoder.prediction["dec_rnn"].lstm
    greedy = model.cfg.decoding.get("greedy") or {}
    sizes = {
        "model_type": "nemo-conformer-tdt" if entry.kind == "tdt" else "nemo-conformer-rnnt",
        "features_size": int(front.features),
        "subsampling_factor": int(model.encoder.subsampling_factor),
        "max_tokens_per_step": int(greedy.get("max_symbols") or 10),
        "sample_rate": rate,
        "n_fft": int(front.n_fft),
        "win_length": round(front.window_size * rate),
        "hop_length": round(front.window_stride * rate),
        "preemphasis": float(front.get("preemph", 0.97)),
        "normalize": "per_feature" if front.normalize == "per_feature" else "NA",
        "vocab_size": len(model.tokenizer.vocab),
        "blank_id": len(model.tokenizer.vocab),
        "durations": list(_durations(model)),
        "encoder_hidden_size": int(model.encoder.d_model),
        "decoder_hidden_size": int(network.hidden_size),
        "decoder_num_layers": int(network.num_layers),
    }
    if entry.streaming:
        sizes["streaming"] = _streaming_sizes(model, entry)
    if tags := prompts.dictionary(model):
        sizes["prompts"] = tags
    elif entry.languages:
        sizes["languages"] = list(entry.languages)
    return sizes


def _streaming_sizes(model: ASRModel, entry: NemoEntry) -> dict[str, Any]:
    config = model.encoder.streaming_cfg
    channel, time, _ = model.encoder.get_initial_cache_state(batch_size=1)
    factor = int(model.encoder.subsampling_factor)
    default = entry.look_aheads[0] if entry.default_look_ahead is None else entry.default_look_ahead
    return {
        "look_aheads": sorted(entry.look_aheads),
        "default_look_ahead": default,
        "chunk_frames": {str(r): factor * (r + 1) for r in sorted(entry.look_aheads)},
        "history_frames": _later(config.pre_encode_cache_size),
        "dropped_frames": int(config.drop_extra_pre_encoded),
        "silence": _SILENCE,
        "left_context": int(model.encoder.att_context_size_all[0][0]),
        # Shapes of one stream's caches: layers first.
        "cache_last_channel": [channel.shape[0], *channel.shape[2:]],
        "cache_last_time": [time.shape[0], *time.shape[2:]],
    }


def _later(value: Any) -> int:
    """NeMo gives some sizes for the first chunk and for all others."""
    return int(value[-1] if isinstance(value, list | tuple) else value)
