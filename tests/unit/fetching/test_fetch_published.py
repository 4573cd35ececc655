"""scripts/fetch_models against a hub that drops connections, lies and stalls."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import shutil
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

import fake_hub
from fake_hub import COMMIT, REPOSITORY, FakeHub, breaks_after, status
from fetching import fetch, manifest
from fetching.fetch import Sources, pin
from fetching.hub import Hub
from fetching.main import main
from fetching.manifest import FetchError, RemoteFile, Snapshot
from fetching.packages import Packages
from fetching.progress import Progress
from msgspec.structs import replace

BIG = bytes(range(256)) * 20_000
FILES = {"encoder-model.onnx": BIG, "sub/vocab.txt": b"a 0\nb 1\n", "README.md": b"nothing we want"}


@pytest.fixture(autouse=True)
def lock(tmp_path, monkeypatch):
    """The lock, in place of the project's."""
    lock = tmp_path / "checkpoints.lock.json"
    monkeypatch.setattr(manifest, "LOCK", lock)
    monkeypatch.setattr(manifest, "MANIFEST", tmp_path / "checkpoints.toml")
    monkeypatch.setenv("PARLEY_WEIGHTS_CACHE", str(tmp_path / "cache"))
    return lock


@pytest.fixture
def remote():
    hub = FakeHub(dict(FILES), small=("sub/vocab.txt", "README.md"))
    yield hub
    hub.close()


class Person:
    """Runs downloads; never really sleeps."""

    def __init__(self, remote, tmp_path):
        self.remote = remote
        self.models = tmp_path / "models"
        self.cache = tmp_path / "cache"
        self.said = io.StringIO()
        self.environment = {"PARLEY_MODEL_HUB": remote.address}

    def fetch(self, *, include=("*.onnx", "sub/*"), pinned=None):
        manifest.MANIFEST.write_text(
            f'[weights.model]\nrepository = "{REPOSITORY}"\ninclude = {list(include)}\n'
        )
        entry = manifest.load(self.models)["model"]
        hub, packages = Hub(self.environment), Packages(self.cache / "packages")
        sources = Sources(self.cache, hub, packages, Progress(self.said))
        entry = pin(replace(entry, pinned=pinned or entry.pinned), sources, anew=False)
        fetch.fetch([entry], self.models, sources)
        return self.models / "model"

    def asked(self, name="encoder-model.onnx"):
        """The ranges that were requested of a file."""
        return [wanted for file, wanted in self.remote.requests if file == name]

    def leftovers(self):
        """What is in the cache beside whole files and the lock."""
        return [path.name for path in self.cache.iterdir() if len(path.name) != 64 and path.name != ".lock"]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """No waits, and a file that is written in pieces of 1,000 bytes."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1_000)


@pytest.fixture
def person(remote, tmp_path):
    return Person(remote, tmp_path)


def whole(folder):
    return (folder / "encoder-model.onnx").read_bytes() == BIG and (
        folder / "sub/vocab.txt"
    ).read_bytes() == FILES["sub/vocab.txt"]


def test_all_files_that_are_wanted_come_whole(person):
    folder = person.fetch()
    assert whole(folder)
    assert not (folder / "README.md").exists()
    assert person.leftovers() == []
    note = json.loads((folder / ".source.json").read_text())
    assert (note["repository"], note["commit"]) == (REPOSITORY, COMMIT)
    assert {file["name"]: (file["size"], file["sha256"]) for file in note["files"]} == {
        name: (len(FILES[name]), hashlib.sha256(FILES[name]).hexdigest())
        for name in ("encoder-model.onnx", "sub/vocab.txt")
    }


def test_present_file_is_not_fetched_again(person):
    person.fetch()
    person.remote.requests.clear()
    assert whole(person.fetch())
    assert person.remote.requests == []


def test_a_file_that_was_changed_is_fetched_again(person):
    folder = person.fetch()
    (folder / "encoder-model.onnx").write_bytes(bytes(len(BIG)))
    assert whole(person.fetch())


def test_a_link_in_the_place_of_a_download_is_replaced(person, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("text")
    folder = person.models / "model"
    folder.mkdir(parents=True)
    person.cache.mkdir()
    (person.cache / f"{hashlib.sha256(BIG).hexdigest()}.part").symlink_to(precious)
    (folder / ".source.json").symlink_to(precious)
    assert whole(person.fetch())
    assert precious.read_text() == "text"
    assert not (folder / ".source.json").is_symlink()


def test_a_broken_connection_is_resumed_where_it_broke(person):
    person.remote.faults = [breaks_after(1_000_000), breaks_after(1_000_000), breaks_after(70_000)]
    assert whole(person.fetch())
    assert person.asked() == [None, "bytes=1000000-", "bytes=2000000-", "bytes=2070000-"]


def test_an_earlier_run_is_resumed(person):
    person.remote.faults = [breaks_after(3_000_000), status(404)]
    with pytest.raises(FetchError):
        person.fetch()
    assert person.leftovers() == [f"{hashlib.sha256(BIG).hexdigest()}.part"]
    person.remote.requests.clear()
    assert whole(person.fetch())
    assert person.asked() == ["bytes=3000000-"]
    assert person.leftovers() == []


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        (fake_hub.ignores_range, [None, "bytes=1000000-"]),
        (fake_hub.resumes_elsewhere, [None, "bytes=1000000-", None]),
        (status(416), [None, "bytes=1000000-", None]),
    ],
    ids=["sends all again", "resumes elsewhere", "rejects the offset"],
)
def test_a_hub_that_does_not_resume_properly(person, fault, requests):
    person.remote.faults = [breaks_after(1_000_000), fault]
    assert whole(person.fetch())
    assert person.asked() == requests


def test_wrong_bytes_are_fetched_once_more(person):
    person.remote.faults = [fake_hub.spoiled]
    assert whole(person.fetch())


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([fake_hub.spoiled] * 2, "encoder-model.onnx has a wrong size or checksum, twice"),
        ([fake_hub.too_long] * 2, "wrong size"),
        ([status(503)] * 9, "status 503"),
    ],
    ids=["wrong", "too long", "busy for good"],
)
def test_download_with_a_wrong_checksum_is_refused_without_leftovers(person, faults, words):
    person.remote.faults = faults
    with pytest.raises(FetchError, match=words):
        person.fetch()
    assert person.leftovers() == []


def test_a_small_file_with_another_checksum_of_git_is_refused(person):
    person.remote.small_faults = [fake_hub.spoiled]
    with pytest.raises(FetchError, match=r"sub/vocab\.txt has a wrong checksum"):
        person.fetch()


def test_the_lock_overrides_the_hubs_checksums(person):
    file = RemoteFile(name="encoder-model.onnx", size=len(BIG), sha256="0" * 64)
    pinned = Snapshot(commit=COMMIT, files=(file,), repository=REPOSITORY)
    with pytest.raises(FetchError, match="checksum"):
        person.fetch(include=("*.onnx",), pinned=pinned)


@pytest.mark.parametrize("faults", ["faults", "api_faults"], ids=["file", "list"])
@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_busy_hub_is_asked_again(person, code, faults):
    setattr(person.remote, faults, [status(code), status(code)])
    assert whole(person.fetch())


@pytest.mark.parametrize(
    ("code", "advice"), [(404, "PARLEY_MODEL_HUB"), (401, "HF_TOKEN"), (403, "licence"), (400, "400")]
)
def test_permanent_failure_is_not_retried(person, code, advice):
    person.remote.faults = [status(code)]
    with pytest.raises(FetchError, match=advice):
        person.fetch()


@pytest.mark.parametrize("answer", [b"{}", b"[]", b'"no"'])
def test_a_hub_that_answers_something_else_is_named(person, answer):
    person.remote.api_faults = [lambda handler, _: fake_hub.send(handler, answer)]
    with pytest.raises(FetchError, match="cannot be understood"):
        person.fetch()


def test_a_missing_file_is_named(person):
    with pytest.raises(FetchError, match=r"no \*\.nemo"):
        person.fetch(include=("*.nemo", "*.onnx"))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\b"])
def test_no_file_leaves_its_folder(person, name):
    person.remote.announced = {"encoder-model.onnx": name}
    with pytest.raises(FetchError, match=r"folder|has no"):
        person.fetch()


@pytest.mark.parametrize("name", [".source.json", ".weights.json", "sub/.hidden"])
def test_a_file_that_a_download_writes_itself_does_not_come_from_the_hub(person, name):
    person.remote.files[name] = b"planted"
    folder = person.fetch(include=("*",))
    assert whole(folder)
    assert not (folder / name).is_file() or (folder / name).read_bytes() != b"planted"


@pytest.mark.parametrize(
    "file",
    [
        {"name": "../../evil.json", "size": 7},
        {"name": 5, "size": 7},
        {"name": "encoder-model.onnx", "size": "7"},
        {"name": "encoder-model.onnx", "size": -7},
    ],
)
def test_a_note_that_no_download_can_have_written_pins_nothing(person, file):
    folder = person.models / "model"
    folder.mkdir(parents=True)
    others = [{"name": "encoder-model.onnx", "size": 7}, {"name": "sub/vocab.txt", "size": 7}]
    note = {"repository": REPOSITORY, "commit": COMMIT, "files": [file, *others]}
    (folder / ".source.json").write_text(json.dumps(note))
    assert whole(person.fetch(include=("*",)))
    assert not (person.models.parent / "evil.json").exists()


def test_the_token_stays_with_the_hub(person):
    other = FakeHub(dict(FILES), host="127.0.0.2")
    try:
        person.environment["HF_TOKEN"] = "secret"  # noqa: S105
        person.remote.faults = [
            fake_hub.redirects(f"{other.address}/{REPOSITORY}/resolve/{COMMIT}/encoder-model.onnx")
        ]
        assert whole(person.fetch())
        assert person.remote.tokens == {"Bearer secret"}
        assert other.tokens == {None}
    finally:
        other.close()


def test_too_little_room_is_found_out_before(person, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(FetchError, match="free space"):
        person.fetch()
    assert person.asked() == []


def test_partial_download_reduces_the_needed_room(person, monkeypatch):
    monkeypatch.setattr(fetch, "_MARGIN", 0)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(BIG)))
    person.remote.faults = [breaks_after(3_000_000), status(404)]
    with pytest.raises(FetchError, match="status 404"):
        person.fetch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(BIG) - 3_000_000))
    assert whole(person.fetch())


def test_a_second_download_waits_for_the_first(person):
    person.cache.mkdir()
    second = threading.Thread(target=person.fetch)
    with (person.cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        while "waiting for another process" not in person.said.getvalue():
            assert second.is_alive()
        assert person.remote.requests == []
    second.join()
    assert whole(person.models / "model")


def test_a_hub_that_cannot_be_reached_is_named_with_the_variables(person):
    person.remote.close()
    with pytest.raises(
        FetchError, match=r"no connection to http://.*PARLEY_MODEL_HUB or HF_ENDPOINT"
    ) as caught:
        person.fetch()
    assert person.remote.address in str(caught.value)


class TestCommand:
    @pytest.fixture
    def run(self, remote, lock, tmp_path, monkeypatch):
        manifest.MANIFEST.write_text(
            f'[weights."tiny"]\nrepository = "{REPOSITORY}"\ninclude = ["*.onnx", "sub/*"]\nabout="a model"\n'
        )
        monkeypatch.setenv("PARLEY_MODEL_HUB", remote.address)
        monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "models"))
        run = lambda *arguments: main(list(arguments))  # noqa: E731
        run.models, run.cache = tmp_path / "models", tmp_path / "cache"
        run.lock, run.entries = lock, manifest.MANIFEST
        return run

    def test_fetch_writes_into_the_models_folder(self, run):
        assert run("tiny") == 0
        assert whole(run.models / "tiny")

    @pytest.mark.parametrize("arguments", [(), ("--lock",)])
    def test_fetch_pins_the_fetched_files(self, run, remote, capsys, arguments):
        assert run("tiny", *arguments) == 0
        assert f"tiny is pinned to {COMMIT} in build/checkpoints.lock.json" in capsys.readouterr().err
        pinned = json.loads(run.lock.read_text())["tiny"]
        assert (pinned["repository"], pinned["commit"]) == (REPOSITORY, COMMIT)
        assert {file["name"]: (file["size"], file["sha256"]) for file in pinned["files"]} == {
            name: (len(FILES[name]), hashlib.sha256(FILES[name]).hexdigest())
            for name in ("encoder-model.onnx", "sub/vocab.txt")
        }
        remote.files["encoder-model.onnx"] = bytes(len(BIG))
        shutil.rmtree(run.models)
        shutil.rmtree(run.cache)
        assert run("tiny") == 1
        assert "encoder-model.onnx has a wrong size or checksum, twice" in capsys.readouterr().err

    def test_on_another_machine_the_same_commit_comes(self, run, remote):
        assert run("tiny") == 0
        pins = run.lock.read_text()
        shutil.rmtree(run.models)
        shutil.rmtree(run.cache)
        remote.commit = "beef"
        remote.commits.clear()
        assert run("tiny") == 0
        assert set(remote.commits) == {COMMIT}
        assert run.lock.read_text() == pins

    def test_a_newer_version_comes_only_on_demand(self, run, remote):
        assert run("tiny") == 0
        remote.commit = "beef"
        remote.files["encoder-model.onnx"] = BIG[1:]
        assert run("tiny") == 0
        assert whole(run.models / "tiny")
        assert run("tiny", "--lock") == 0
        assert (run.models / "tiny/encoder-model.onnx").read_bytes() == BIG[1:]
        assert json.loads(run.lock.read_text())["tiny"]["commit"] == "beef"

    def test_a_lock_without_repositories_is_replaced_on_demand(self, run, capsys):
        run.lock.write_text(json.dumps({"tiny": {"commit": COMMIT, "files": []}}))
        assert run("tiny") == 1
        assert "ARGS=--lock pins the newest version" in capsys.readouterr().err
        assert run("tiny", "--lock") == 0
        assert json.loads(run.lock.read_text())["tiny"]["repository"] == REPOSITORY

    def test_lock_pins_several_entries(self, run):
        other = run.entries.read_text().replace('"tiny"', '"other"')
        run.entries.write_text(run.entries.read_text() + other)
        assert run("other") == run("tiny") == 0
        assert list(json.loads(run.lock.read_text())) == ["other", "tiny"]

    @pytest.mark.parametrize(("was", "now"), [("maker/model", "maker/other"), ('"*.onnx", ', "")])
    def test_a_lock_that_does_not_fit_the_manifest_is_refused(self, run, capsys, was, now):
        assert run("tiny") == 0
        run.entries.write_text(run.entries.read_text().replace(was, now))
        assert run("tiny") == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "pins tiny to files of maker/model that are not those of the manifest" in error

    def test_fetch_with_a_read_only_lock_pins_by_the_folder(self, run, remote, monkeypatch, capsys):
        def refuse(*_):
            raise PermissionError("read-only")

        monkeypatch.setattr(fetch, "write_whole", refuse)
        assert run("tiny") == 0
        assert "tiny is pinned in its folder only (.source.json)" in capsys.readouterr().err
        remote.commit = "beef"
        for _ in range(2):
            remote.commits.clear()
            shutil.rmtree(run.cache)
            (run.models / "tiny/encoder-model.onnx").unlink()
            assert run("tiny") == 0
            assert set(remote.commits) == {COMMIT}

    def test_weights_that_only_their_folder_pins_come_into_the_lock(self, run):
        assert run("tiny") == 0
        pins = run.lock.read_text()
        run.lock.unlink()
        assert run("tiny") == 0
        assert run.lock.read_text() == pins

    def test_a_small_file_is_checked_against_the_lock_too(self, run, remote, capsys):
        assert run("tiny", "--lock") == 0
        remote.files["sub/vocab.txt"] = b"b 0\na 1\n"  # as long, and announced with git's checksum only
        (run.models / "tiny/sub/vocab.txt").unlink()
        shutil.rmtree(run.cache)
        assert run("tiny") == 1
        assert "sub/vocab.txt has a wrong size or checksum, twice" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["[]", "5", '{"tiny": []}', '{"tiny": 5}', "[" * 100_000])
    def test_a_malformed_lock_is_one_line(self, run, capsys, text):
        run.lock.write_text(text)
        assert run("tiny") == 1
        assert len(capsys.readouterr().err.strip().splitlines()) == 1

    def test_the_state_is_by_the_lock_and_by_what_has_changed(self, run, capsys):
        def state(*more):
            run("tiny", "--status", "--json", *more)
            return json.loads(capsys.readouterr().out)["state"]

        assert run("tiny") == 0
        assert (state(), state("--verify")) == ("verified", "verified")
        run.lock.unlink()
        assert (state(), state("--verify")) == ("verified", "verified")
        file = run.models / "tiny/encoder-model.onnx"
        file.unlink()
        file.write_bytes(bytes(len(BIG)))
        assert (state(), state("--verify")) == ("wrong: encoder-model.onnx",) * 2

    def test_files_of_another_commit_than_the_locks_are_fetched_again(self, run, remote):
        assert run("tiny") == 0
        pins = run.lock.read_text()
        remote.commit, remote.files["encoder-model.onnx"] = "beef", BIG[1:]
        assert run("tiny", "--lock") == 0
        run.lock.write_text(pins)
        remote.files["encoder-model.onnx"] = BIG
        assert run("tiny") == 0
        assert whole(run.models / "tiny")
        assert f'"{COMMIT}"' in (run.models / "tiny/.source.json").read_text()

    def test_an_unknown_name_is_wrong_usage(self, run, capsys):
        with pytest.raises(SystemExit) as caught:
            run("huge")
        assert caught.value.code == 2
        assert "there are tiny" in capsys.readouterr().err

    def test_a_failure_is_one_line(self, run, remote, capsys):
        remote.faults = [status(404)]
        assert run("tiny") == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")

    def test_a_manifest_that_cannot_be_read_is_one_line(self, run, capsys):
        run.entries.write_text("[weights.x]\n")
        assert run("x") == 1
        assert "error: " in capsys.readouterr().err


def test_the_shipped_manifest_can_be_read(monkeypatch):
    monkeypatch.setattr(manifest, "MANIFEST", manifest.ROOT / "build/checkpoints.toml")
    entries = manifest.load()
    assert "parakeet-tdt-0.6b-v2" in entries
    assert all(entry.about for entry in entries.values())
