"""Weights of ONNX files, in every form in which exporters write them, against ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[1] / "tts"))

import onnxruntime
from tiny_onnx import FLOAT, field, model, node, value, varint

from parley.errors import ModelLoadingError
from parley.runtime.onnx_file import OnnxModel

INT32, INT64, FLOAT16, BFLOAT16 = 6, 7, 10, 16
INT32_DATA, INT64_DATA, RAW_DATA = 5, 7, 9
HALVES = np.array([[1.5, -2.0, 6e-8], [0.0, -0.0, 65_504.0]], np.float16)
NUMBERS = [0, 1, -1, 127, 128, 2**31 - 1, -(2**31)]


def packed(numbers):
    """Numbers behind each other; negative ones with 64 bits."""
    return b"".join(varint(int(number) % 2**64) for number in numbers)


def weight(kind, shape, number, content):
    dims = b"".join(field(1, size) for size in shape)
    return field(5, dims + field(2, kind) + field(8, "weight") + field(number, content))


def a_model(initializer):
    """It has the weight as f32 for its output."""
    return model(node("Cast", "weight", "out", to=FLOAT), initializer, value(12, "out", FLOAT))


def read(file):
    return OnnxModel(file).tensors(Path())["weight"]


def expected(file):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {})[0]


def bits(values):
    return values.view(np.uint16).ravel()


def upper_halves(values):
    return np.ascontiguousarray(np.asarray(values, np.float32)).view(np.uint32).ravel() >> 16


BRAINS = [[1.5, -2.0, 1e-30], [0.0, -0.0, 3e38]]


@pytest.mark.parametrize(
    ("initializer", "dtype"),
    [
        (weight(FLOAT16, (2, 3), INT32_DATA, packed(bits(HALVES))), np.float16),
        (weight(FLOAT16, (2, 3), RAW_DATA, HALVES.tobytes()), np.float16),
        (weight(BFLOAT16, (2, 3), INT32_DATA, packed(upper_halves(BRAINS))), np.float32),
        (weight(BFLOAT16, (2, 3), RAW_DATA, upper_halves(BRAINS).astype(np.uint16).tobytes()), np.float32),
        (weight(INT32, (7,), INT32_DATA, packed(NUMBERS)), np.int32),
        (weight(INT64, (7,), INT64_DATA, packed(NUMBERS)), np.int64),
    ],
)
def test_a_weight_is_what_onnx_runtime_reads(initializer, dtype):
    file = a_model(initializer)
    found = read(file)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32), expected(file))


def test_numbers_that_are_not_packed_are_the_same():
    apart = b"".join(field(INT32_DATA, int(number) % 2**64) for number in NUMBERS)
    whole = weight(INT32, (7,), INT32_DATA, packed(NUMBERS))
    initializer = field(5, field(1, 7) + field(2, INT32) + field(8, "weight") + apart)
    np.testing.assert_array_equal(read(a_model(initializer)), read(a_model(whole)))


def test_long_numbers_keep_all_their_bits():
    numbers = [2**63 - 1, -(2**63), 2**40 + 3]
    assert read(a_model(weight(INT64, (3,), INT64_DATA, packed(numbers)))).tolist() == numbers


@pytest.mark.parametrize(
    "initializer",
    [
        weight(FLOAT16, (2, 4), INT32_DATA, packed(bits(HALVES))),
        weight(FLOAT16, (2, 3), INT32_DATA, packed(bits(HALVES)) + b"\x80"),
        weight(FLOAT16, (2, 3), INT32_DATA, b""),
    ],
)
def test_weights_that_are_cut_off_are_an_error(initializer):
    with pytest.raises(
        ModelLoadingError, match=r"a weight of the ONNX model cannot be read|not an ONNX model"
    ):
        read(a_model(initializer))
