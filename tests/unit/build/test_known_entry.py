"""``make export`` refuses unknown names before it makes the environment for it."""

import shutil
import subprocess
import tomllib
from pathlib import Path

from known_entry import find_names, main

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "build/checkpoints.toml"


def test_the_names_are_those_of_the_manifest():
    text = MANIFEST.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    assert find_names(text) == [*tables["checkpoints"], *tables["chatterbox"]]


def test_an_unknown_name_is_wrong_usage_with_what_there_is(capsys):
    assert main(["parakeet-tdt-0.6-v2"]) == 2
    error = capsys.readouterr().err
    assert "no 'parakeet-tdt-0.6-v2' in checkpoints.toml (did you mean parakeet-tdt-0.6b-v2?)" in error
    assert "nemotron-speech-streaming-en-0.6b" in error
    assert main(["chatterbox", "--from", "published"]) == 0


def test_another_manifest_counts(tmp_path, capsys):
    (tmp_path / "my.toml").write_text("[checkpoints.mine]\n[checkpoints.mine.accuracy]\n")
    manifest = ["--manifest", str(tmp_path / "my.toml")]
    assert main(["mine", "--from", "my.nemo", *manifest]) == 0
    assert main(["parakeet-tdt-0.6b-v2", *manifest]) == 2
    assert main(["mine", "--manifest", str(tmp_path / "none.toml")]) == 2
    assert "none.toml cannot be read" in capsys.readouterr().err


def test_unknown_name_sets_nothing_up(tmp_path):
    for name in ("Makefile", "build/known_entry.py", "build/checkpoints.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup").write_text("print('set up')\nraise SystemExit(1)\n")

    def make(*arguments):
        return subprocess.run(
            ["make", "export", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    unknown = make("MODEL=foo")
    assert unknown.returncode == 2
    assert "error: no 'foo' in checkpoints.toml" in unknown.stderr
    assert "set up" not in unknown.stdout
    for known in ("parakeet-tdt-0.6b-v2", "chatterbox"):
        assert "set up" in make(f"MODEL={known}").stdout
