import pytest

from parley.errors import (
    ContextTooLongError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.triton.failures import read_failure, wire_text


def test_errors_survive_the_wire():
    error = read_failure(wire_text(ContextTooLongError("9000 tokens")))
    assert type(error) is ContextTooLongError
    assert str(error) == "9000 tokens"


def test_unexpected_errors_become_internal():
    error = read_failure(wire_text(KeyError("x")))
    assert type(error) is ParleyError
    assert "KeyError" in str(error)


def test_triton_may_put_words_before_a_models_error():
    assert type(read_failure("in ensemble, overloaded: full")) is OverloadedError


@pytest.mark.parametrize(
    "text",
    [
        "Request for unknown model: 'x' is not found",
        "Request for unknown model: 'espeak' has no available versions",
        "Model x - Error when running inference: Model 'x' is not ready.",
        "Stub process 'x_0_0' is not healthy.",
        "Failed to obtain the health mutex.",
    ],
)
def test_missing_models_are_unavailable(text):
    assert type(read_failure(text)) is ModelUnavailableError


def test_other_text_is_an_inference_error():
    assert type(read_failure("tensor X has the wrong shape")) is InferenceError


def test_what_a_stopping_server_refuses_has_not_failed():
    text = "Model nemotron_streaming - Error when running inference: Server not ready"
    assert type(read_failure(text)) is ShuttingDownError
