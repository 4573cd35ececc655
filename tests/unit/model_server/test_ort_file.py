"""Values inside of branches as outputs of models in ONNX Runtime's own format, run by ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[1] / "tts"))

import onnxruntime
from tiny_onnx import FLOAT, constant, field, model, node, value

from parley.errors import ModelLoadingError
from parley.runtime.ort_file import OrtFile

BOOL, GRAPH = 9, 5
TWICE = np.array([[2.0, 4.0]], np.float32)


def branch(factor):
    """``inside`` is ``x`` times the factor, and ``result`` one more."""
    parts = [
        constant("factor", np.float32(factor)),
        constant("one", np.float32(1)),
        node("Mul", "x factor", "inside"),
        node("Add", "inside one", "result"),
        value(12, "result", FLOAT, "n", 2),
    ]
    return field(2, "branch") + b"".join(parts)


def forked(*, name="If"):
    graphs = {"then_branch": branch(2), "else_branch": branch(3)}
    attributes = [
        field(5, field(1, key) + field(6, graph) + field(20, GRAPH)) for key, graph in graphs.items()
    ]
    return field(1, field(1, "flag") + field(2, "y") + field(4, name) + b"".join(attributes))


def saved(tmp_path, *parts):
    """The content of the file that ONNX Runtime makes of a graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    graph = model(*parts, value(11, "x", FLOAT, "n", 2), value(11, "flag", BOOL, 1))
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return (tmp_path / "model.ort").read_bytes()


@pytest.fixture
def content(tmp_path):
    return saved(tmp_path, forked(), value(12, "y", FLOAT, "n", 2))


@pytest.mark.parametrize(("flag", "factor"), [(True, 2), (False, 3)])
def test_value_of_a_branch_becomes_an_output(content, flag, factor):
    file = OrtFile(content)
    assert file.outputs == ["y"]
    session = onnxruntime.InferenceSession(
        file.with_branch_outputs({"inside": "seen"}, like="y"), providers=["CPUExecutionProvider"]
    )
    assert [output.name for output in session.get_outputs()] == ["y", "seen"]
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    y, seen = session.run(None, {"x": x, "flag": np.array([flag])})
    assert np.array_equal(seen, factor * x)
    assert np.array_equal(y, factor * x + 1)


def test_file_keeps_its_own_content(content):
    changed = OrtFile(content).with_branch_outputs({"inside": "seen"}, like="y")
    assert changed.endswith(content)
    assert OrtFile(changed).outputs == ["y", "seen"]


def test_graph_without_what_is_needed_is_refused(content, tmp_path):
    with pytest.raises(ModelLoadingError, match="or no z"):
        OrtFile(content).with_branch_outputs({"inside": "seen"}, like="z")
    plain = saved(tmp_path, node("Identity", "x", "y"), value(12, "y", FLOAT, "n", 2))
    with pytest.raises(ModelLoadingError, match="no If"):
        OrtFile(plain).with_branch_outputs({"inside": "seen"}, like="y")


@pytest.mark.parametrize("broken", [b"", b"\x08\x08", bytes(64), b"\x08\0\0\0ORTM"])
def test_other_files_are_refused(broken):
    with pytest.raises(ModelLoadingError):
        OrtFile(broken)


def test_file_that_ends_early_is_refused(content):
    with pytest.raises(ModelLoadingError):
        OrtFile(content[: len(content) // 50]).with_branch_outputs({"inside": "seen"}, like="y")
