import json

import pytest

from parley.errors import ModelLoadingError
from parley.runtime.parameters import Parameters


def parameters(environment=None, **values):
    return Parameters("qwen3", values, environment=environment or {})


def test_reads_what_triton_gives(tmp_path):
    config = {"parameters": {"threads": {"string_value": "2"}}}
    args = {
        "model_name": "qwen3",
        "model_repository": str(tmp_path / "qwen3"),
        "model_version": "1",
        "model_config": json.dumps(config),
    }
    read = Parameters.from_args(args, environment={})
    assert read.integer("threads", 0) == 2
    assert read.version_dir == tmp_path / "qwen3" / "1"
    assert read.repository == tmp_path


def test_unset_and_empty_values_are_defaults():
    assert parameters(name="").text("name", "default") == "default"
    assert parameters().integer("n", 5) == 5
    assert parameters().number("x", 0.5) == 0.5
    assert parameters().choice("c", "a", ("a", "b")) == "a"


def test_lists():
    assert parameters(languages=" en, de,,").names("languages", "fr") == ("en", "de")
    assert parameters().names("languages", "fr") == ("fr",)


def test_environment_wins():
    read = parameters({"PARLEY_QWEN3_THREADS": "4"}, threads="1")
    assert read.integer("threads", 0) == 4


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda p: p.integer("n", 0), "1.5"),
        (lambda p: p.integer("low", 0, minimum=1), "at least 1"),
        (lambda p: p.integer("high", 0, maximum=450), "at most 450"),
        (lambda p: p.number("word", 0), "a number"),
        (lambda p: p.number("nan", 0), "at least"),
        (lambda p: p.choice("word", "a", ("a", "b")), "a, b"),
    ],
)
def test_bad_values_say_which_and_why(read, named):
    settings = parameters(n="1.5", low="0", high="451", word="x", nan="nan")
    with pytest.raises(ModelLoadingError, match=named):
        read(settings)


def test_a_bad_override_names_the_variable():
    with pytest.raises(ModelLoadingError, match="PARLEY_QWEN3_N"):
        parameters({"PARLEY_QWEN3_N": "x"}).integer("n", 0)
