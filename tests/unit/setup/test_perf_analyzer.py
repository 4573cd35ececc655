"""scripts/setup --perf-analyzer, with a fake uv and a fake Debian."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from provision import main
from provision import perf_analyzer as provision
from provision.system import SetupError

DEB = b"a package of Debian"


class FakeUv:
    """Puts a program there that says with which libraries it was started."""

    installed = 0
    works = True

    def __init__(self, root):
        self.root = root

    def prepare(self):
        pass

    def install(self, *arguments):
        FakeUv.installed += 1
        program = Path(arguments[arguments.index("--target") + 1]) / "bin" / "perf_analyzer"
        program.parent.mkdir(parents=True)
        if self.works:
            program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a lock, on a machine without the library but with programs of Debian."""
    lock = tmp_path / "build" / "requirements" / provision.LOCK
    lock.parent.mkdir(parents=True)
    lock.write_text("tritonclient==2.51.0")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        f"test -e {tmp_path}/absent && exit 100\n"
        f'test "$1" = download && printf "%s" "{DEB.decode()}" > libb64-0d_1_amd64.deb\nexit 0\n'
    )
    (programs / "dpkg").write_text('#!/bin/sh\nmkdir -p "$3/usr/lib/x86_64-linux-gnu"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(provision, "Uv", FakeUv)
    monkeypatch.setattr(provision, "loads", lambda _: False)
    monkeypatch.setattr(provision, "_B64_SHA256", hashlib.sha256(DEB).hexdigest())
    monkeypatch.setattr(FakeUv, "installed", 0)
    return tmp_path


def test_the_program_is_started_with_its_libraries(checkout):
    provision.provide_perf_analyzer(checkout)
    program = provision.perf_analyzer_path(checkout)
    said = subprocess.run([str(program), "-m", "espeak"], capture_output=True, text=True, check=True).stdout
    libraries, arguments = said.split(" ", 1)
    assert arguments == "-m espeak\n"
    folder = program.parent
    assert libraries.split(":")[:2] == [
        str(folder / "packages/nvidia/cuda_runtime/lib"),
        str(folder / "usr/lib/x86_64-linux-gnu"),
    ]


def test_it_is_made_once_until_the_lock_changes(checkout):
    for _ in range(2):
        provision.provide_perf_analyzer(checkout)
    assert FakeUv.installed == 1
    (checkout / "build" / "requirements" / provision.LOCK).write_text("tritonclient==2.50.0")
    provision.provide_perf_analyzer(checkout)
    assert FakeUv.installed == 2


def test_a_library_that_the_machine_has_is_not_downloaded(checkout, monkeypatch):
    monkeypatch.setattr(provision, "loads", lambda _: True)
    provision.provide_perf_analyzer(checkout)
    assert not (checkout / "asked").exists()


def test_a_package_of_another_content_is_refused(checkout, monkeypatch):
    monkeypatch.setattr(provision, "_B64_SHA256", "0" * 64)
    with pytest.raises(SetupError, match=r"checksum .* apt-get install libb64-0d"):
        provision.provide_perf_analyzer(checkout)
    assert not provision.perf_analyzer_path(checkout).exists()


def test_a_package_that_cannot_be_had_is_named(checkout, monkeypatch, capsys):
    (checkout / "absent").touch()
    monkeypatch.setattr(main, "ROOT", checkout)
    (checkout / ".cache").mkdir()
    assert main.main(["--perf-analyzer"]) == 1
    assert "sudo apt-get install libb64-0d" in capsys.readouterr().err
    asked = (checkout / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["download", "update", "download"]


def test_a_wheel_without_the_program_is_an_error(checkout, monkeypatch):
    monkeypatch.setattr(FakeUv, "works", False)
    with pytest.raises(SetupError, match="has another wheel"):
        provision.provide_perf_analyzer(checkout)
