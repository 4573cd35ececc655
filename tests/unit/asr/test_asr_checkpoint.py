import json

import pytest

from parley.asr import checkpoint
from parley.errors import ModelLoadingError, WeightsNotFoundError


@pytest.fixture
def folder(tmp_path):
    for name in (checkpoint.ENCODER_FILE, checkpoint.DECODER_FILE):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.txt").write_text("<unk> 0\n▁a 1\nb 2\n<blk> 3\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "nemo-conformer-tdt", "features_size": 128}')
    return tmp_path


def test_missing_config_values_are_those_of_published_exports(folder):
    export = checkpoint.load(folder)
    assert export.vocabulary == ("<unk>", "▁a", "b", "<blk>")
    assert export.blank == 3
    assert export.config.features_size == 128
    assert export.config.durations == (0, 1, 2, 3, 4)
    assert export.config.frame_ms == 80


@pytest.mark.parametrize("config", [{"durations": []}, {"model_type": "nemo-conformer-rnnt"}])
def test_an_rnnt_has_no_durations(folder, config):
    (folder / "config.json").write_text(json.dumps(config | {"normalize": "NA"}))
    export = checkpoint.load(folder)
    assert export.config.durations == ()
    assert export.config.normalize == "NA"


@pytest.mark.parametrize(
    ("config", "languages"),
    [
        ({}, ()),
        ({"languages": ["de", "fr"]}, ("de", "fr")),
        ({"prompts": {"de-DE": 0, "auto": 1}, "languages": ["fr"]}, ("de-DE", "auto")),
    ],
)
def test_languages_are_those_of_the_prompts_or_of_the_publisher(folder, config, languages):
    (folder / "config.json").write_text(json.dumps(config))
    assert checkpoint.load(folder).languages == languages


def test_the_shipped_export_says_all_sizes(export):
    assert export.config.features_size == 80
    assert len(export.vocabulary) == export.blank + 1


@pytest.mark.parametrize("name", checkpoint.FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(WeightsNotFoundError, match=name):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "config",
    [
        "garbage",
        json.dumps({"sample_rate": 8000}),
        json.dumps({"normalize": "all_features"}),
        json.dumps({"durations": [0]}),
        json.dumps({"durations": [0, -1]}),
    ],
)
def test_another_kind_of_model_is_refused(folder, config):
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelLoadingError, match=r"config\.json"):
        checkpoint.load(folder)


@pytest.mark.parametrize("vocabulary", ["a 0\nb 1\n", "a 0\n<blk> 2\n", "<blk> x\n", "<blk>\n"])
def test_a_vocabulary_that_cannot_be_right_is_refused(folder, vocabulary):
    (folder / "vocab.txt").write_text(vocabulary)
    with pytest.raises(ModelLoadingError, match=r"vocab\.txt"):
        checkpoint.load(folder)
