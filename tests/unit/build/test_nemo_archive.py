"""What is unpacked of a .nemo file, and where to."""

import io
import tarfile

import pytest

from comparison import ExportError
from nemo_export import archive


def write(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def link(kind):
    info = tarfile.TarInfo("./link")
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


def folder(name):
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


WHOLE = [("./model_config.yaml", b"a: 1"), ("./model_weights.ckpt", b"weights")]


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "target"
    path.mkdir()
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_and_folders_are_unpacked(tmp_path, target, mode, monkeypatch):
    # As on Debian 12, whose Python 3.11.2 has no filters.
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    nemo = write(tmp_path / "a.nemo", [(folder("./"), b""), *WHOLE, ("./sub/tokens.model", b"t")], mode)
    archive.unpack(nemo, target)
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert found == {
        "model_config.yaml": b"a: 1",
        "model_weights.ckpt": b"weights",
        "sub/tokens.model": b"t",
    }


@pytest.mark.parametrize(
    ("member", "why"),
    [
        ("../outside", "elsewhere"),
        ("/tmp/outside", "elsewhere"),  # noqa: S108
        (link(tarfile.SYMTYPE), "neither a file nor a folder"),
        (link(tarfile.LNKTYPE), "neither a file nor a folder"),
        (link(tarfile.FIFOTYPE), "neither a file nor a folder"),
        ("./model_config.yaml", "File exists"),
    ],
)
def test_archive_with_unsafe_or_duplicate_paths_is_refused(tmp_path, target, member, why):
    with pytest.raises(ExportError, match=why):
        archive.unpack(write(tmp_path / "a.nemo", [*WHOLE, (member, b"")]), target)
    assert not (tmp_path / "outside").exists()


def test_size_is_bounded(tmp_path, target):
    nemo = write(tmp_path / "a.nemo", [*WHOLE, ("zeros", bytes(100_000))], "w:gz")
    assert nemo.stat().st_size < 10_000
    with pytest.raises(ExportError, match="more than there is room for"):
        archive.unpack(nemo, target, max_bytes=50_000)


@pytest.mark.parametrize(
    ("content", "why"), [(b"not a tar archive", "is not a .nemo file"), (b"", "is not a .nemo file")]
)
def test_other_files_are_refused(tmp_path, target, content, why):
    (tmp_path / "a.nemo").write_bytes(content)
    with pytest.raises(ExportError, match=why):
        archive.unpack(tmp_path / "a.nemo", target)


def test_an_archive_of_something_else_is_refused(tmp_path, target):
    with pytest.raises(ExportError, match=r"no model_weights\.ckpt in it"):
        archive.unpack(write(tmp_path / "a.nemo", WHOLE[:1]), target)


def test_a_part_of_a_download_is_refused(tmp_path, target):
    whole = write(tmp_path / "a.nemo", [*WHOLE, ("zeros", bytes(100_000))], "w").read_bytes()
    (tmp_path / "a.nemo").write_bytes(whole[:50_000])
    with pytest.raises(ExportError, match="a part of one"):
        archive.unpack(tmp_path / "a.nemo", target)
