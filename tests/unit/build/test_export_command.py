"""What ``build/export.py`` lists, and refuses before it loads NeMo, which takes seconds."""

import sys

import pytest

import checkpoints
from export import EXPORTERS, main

ENTRIES = """
[checkpoints.mine]
kind = "tdt"
precisions = []
accuracy.fp32 = { encoder = 1e-3, tokens = 0.0 }

[checkpoints.theirs]
source = "nemo/theirs"
file = "theirs.nemo"
kind = "tdt"
precisions = []
accuracy.fp32 = { encoder = 1e-3, tokens = 0.0 }
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "my.toml").write_text(ENTRIES)
    monkeypatch.setitem(sys.modules, "nemo", None)  # importing it would fail
    return lambda *arguments: main(
        [
            "checkpoint",
            *arguments,
            "--manifest",
            str(tmp_path / "my.toml"),
            "--into",
            str(tmp_path / "models"),
        ]
    )


def test_names_are_listed(run, capsys):
    assert run() == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["mine", "tdt", "fp32"],
        ["theirs", "tdt", "fp32"],
    ]


def test_an_unknown_name_is_wrong_usage(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("nothing")
    assert "there are mine, theirs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["mine"], "error: the entry mine has no source: name its checkpoint with --from PATH"),
        (["mine", "--from", "/no/such.nemo"], "error: /no/such.nemo is missing"),
        (["theirs"], "error: {file} is missing: get it with `make fetch MODEL=nemo/theirs`"),
    ],
)
def test_missing_checkpoint_is_reported_with_its_remedy(run, capsys, tmp_path, arguments, error):
    assert run(*arguments) == 1
    assert capsys.readouterr().err.strip() == error.format(file=tmp_path / "models/nemo/theirs/theirs.nemo")


def test_the_manifest_has_the_languages_of_models_without_prompts():
    entries = checkpoints.load()
    assert entries["parakeet-tdt-0.6b-v2"].languages == ("en",)
    assert len(set(entries["parakeet-tdt-0.6b-v3"].languages)) == 25
    assert entries["nemotron-speech-streaming-en-0.6b"].languages == ("en",)
    assert entries["nemotron-3.5-asr-streaming-0.6b"].languages == ()


def test_packages_of_another_environment_are_named_with_their_command(run, capsys, tmp_path):
    (tmp_path / "my.nemo").touch()
    assert run("mine", "--from", str(tmp_path / "my.nemo")) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.rstrip().endswith("it is in .venv-export, which `make setup-export` makes")


def test_without_arguments_everything_that_can_be_made_is_listed(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"    {name}" in listed for name in EXPORTERS)
