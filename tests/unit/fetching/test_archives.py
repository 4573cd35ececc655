"""Data out of packages that are damaged, or made to do harm."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parent))

from archive_makers import make_tgz, make_wheel
from fetching.manifest import FetchError, Piece
from fetching.packages import read_member

CONTENT = bytes(range(256)) * 5_000
SIZE = len(CONTENT)
KINDS = {"whl": make_wheel, "tgz": make_tgz}


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    """Makes an archive of one of the two kinds."""

    def build(members):
        path = tmp_path / f"package.{request.param}"
        KINDS[request.param](path, members)
        return path

    return build


def take(archive, part, *, size=SIZE, member="data/a.bin"):
    with part.open("ab") as output:
        read_member(archive, Piece(package="pypi:x==1", member=member, size=size), output)
    return part.read_bytes()


def test_a_piece_is_appended_to_the_pieces_before_it(archive, tmp_path):
    part = tmp_path / "part"
    part.write_bytes(b"before")
    package = archive({"x.py": b"raise SystemExit", "data/a.bin": CONTENT, "data/b.bin": b"b"})
    assert take(package, part) == b"before" + CONTENT
    assert take(package, part, member="data/b.bin", size=1) == b"before" + CONTENT + b"b"


def test_a_path_in_an_archive_leads_nowhere(archive, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    package = archive({"../evil": b"x", "/tmp/evil": b"x", "data/a.bin": CONTENT})  # noqa: S108 - not written
    before = set(tmp_path.iterdir())
    assert take(package, inside / "a") == CONTENT
    assert [path.name for path in inside.iterdir()] == ["a"]
    assert set(tmp_path.iterdir()) == before
    assert take(package, inside / "b", member="../evil", size=1) == b"x", (
        "read by its name, written elsewhere"
    )


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_member_of_another_size_is_refused(archive, tmp_path, size):
    with pytest.raises(FetchError, match=f"the {size} bytes that were announced"):
        take(archive({"data/a.bin": CONTENT}), tmp_path / "part", size=size)
    assert (tmp_path / "part").stat().st_size <= size


def test_a_member_that_is_not_there_is_named(archive, tmp_path):
    with pytest.raises(FetchError, match=r"data/a\.bin"):
        take(archive({"data/b.bin": b""}), tmp_path / "part")


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.98])
def test_a_truncated_archive_is_damaged(archive, tmp_path, keep):
    package = archive({"data/a.bin": CONTENT, "data/b.bin": CONTENT})
    package.write_bytes(package.read_bytes()[: int(package.stat().st_size * keep)])
    with pytest.raises(FetchError, match=r"is damaged"):
        take(package, tmp_path / "part", member="data/b.bin")


def test_spoiled_content_is_damaged(tmp_path):
    package = tmp_path / "package.whl"
    make_wheel(package, {"data/a.bin": CONTENT}, compression=zipfile.ZIP_STORED)
    spoiled = bytearray(package.read_bytes())
    spoiled[5_000] ^= 1
    package.write_bytes(spoiled)
    with pytest.raises(FetchError, match="damaged or another one: Bad CRC"):
        take(package, tmp_path / "part")


@pytest.mark.parametrize(
    "spoil",
    [
        # Its members begin in front of it.
        lambda zipped: zipped[:-6] + (9_000_000).to_bytes(4, "little") + zipped[-2:],
        lambda zipped: zipped.replace("ä".encode(), b"\xff\xff"),
    ],
)
def test_a_wheel_whose_directory_is_spoiled_is_damaged(tmp_path, spoil):
    wheel, part = tmp_path / "package.whl", tmp_path / "part"
    make_wheel(wheel, {"data/a.bin": CONTENT, "data/ä.bin": b""})
    wheel.write_bytes(spoil(wheel.read_bytes()))
    with pytest.raises(FetchError, match="is damaged"):
        take(wheel, part)


def test_a_zip_member_that_holds_more_than_it_says_writes_no_more(tmp_path):
    package = tmp_path / "package.whl"
    make_wheel(package, {"data/a.bin": bytes(50_000_000)})
    data = package.read_bytes()
    said = (50_000_000).to_bytes(4, "little")
    assert data.count(said) == 2
    package.write_bytes(data.replace(said, (1_000).to_bytes(4, "little")))
    part = tmp_path / "part"
    with pytest.raises(FetchError, match="damaged"):
        take(package, part, size=1_000)
    assert part.stat().st_size <= 1_000


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_only_a_plain_file_of_a_tar_file_is_read(tmp_path, kind):
    package = tmp_path / "package.tgz"
    info = tarfile.TarInfo("data/a.bin")
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(package, "w:gz") as archive:
        archive.addfile(info, io.BytesIO())
    with pytest.raises(FetchError, match="no file"):
        take(package, tmp_path / "part", size=0)


def test_a_disk_that_is_full_is_no_damage(archive):
    with pytest.raises(OSError, match="No space left"):
        take(archive({"data/a.bin": CONTENT}), Path("/dev/full"))
