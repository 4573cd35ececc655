import json
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import pytest

from parley.errors import ModelLoadingError
from parley.runtime.parameters import COMPUTED, NonNegative, Parameters, Positive, read_with


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


class Limits(msgspec.Struct, frozen=True, rename={"wait_s": "wait_limit_s"}):
    wait_s: NonNegative = 2.0


class Settings(msgspec.Struct, frozen=True):
    rows: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    queue: Positive | None = None
    device: Literal["gpu", "cpu"] = "cpu"
    guided: bool = True
    languages: tuple[str, ...] = ("en",)
    words: Annotated[Mapping[str, str], read_with(lambda text: {"en": text})] = msgspec.field(
        default_factory=dict
    )
    found: Annotated[str, COMPUTED] = ""
    limits: Limits = msgspec.field(default_factory=Limits)


def test_struct_without_parameters_has_its_defaults():
    assert parameters().read(Settings) == Settings()
    assert parameters().read(Settings, rows=7).rows == 7


def test_struct_is_filled_by_the_names_of_its_settings():
    read = parameters(
        {"PARLEY_QWEN3_ROWS": "8", "PARLEY_QWEN3_WAIT_LIMIT_S": "0.5"},
        rows="2",
        queue="3",
        device="gpu",
        guided="false",
        languages="de, fr",
        words="hello",
        found="x",
    ).read(Settings, rows=7)
    assert read == Settings(
        8, 3, "gpu", guided=False, languages=("de", "fr"), words={"en": "hello"}, limits=Limits(0.5)
    )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("rows", "0", "'rows' of model qwen3 is 0; it must be at least 1"),
        ("rows", "65", "at most 64"),
        ("rows", "1.5", "'1.5'; it must be a whole number"),
        ("queue", "0", "at least 1"),
        ("device", "tpu", "'tpu'; it must be one of gpu, cpu"),
        ("guided", "yes", "one of true, false"),
        ("wait_limit_s", "nan", "at least 0"),
        ("wait_limit_s", "soon", "a number"),
    ],
)
def test_struct_with_a_value_beyond_its_bounds_is_refused(name, value, reason):
    with pytest.raises(ModelLoadingError, match=reason):
        parameters(**{name: value}).read(Settings)


class Listed(msgspec.Struct, frozen=True):
    engines: tuple[str, ...] = ("piper",)


def test_read_of_a_list_of_commas_keeps_the_default():
    assert parameters(engines=" , ").read(Listed) == Listed()
    assert parameters(engines="kokoro, espeak").read(Listed).engines == ("kokoro", "espeak")
