"""Wheels and npm's archives for tests."""

from __future__ import annotations

import io
import tarfile
import zipfile


def make_wheel(path, members, *, compression=zipfile.ZIP_DEFLATED):
    """A zip file with these members: content by name."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            info.external_attr = 0o100755 << 16  # a program keeps what lets it run
            archive.writestr(info, content)


def make_installable(folder, name, version, members):
    """A wheel as pip wants it."""
    plain = name.replace("-", "_")
    about = f"{plain}-{version}.dist-info"
    make_wheel(
        folder / f"{plain}-{version}-py3-none-any.whl",
        {
            **members,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "",
        },
    )


def make_tgz(path, members):
    """As ``npm pack`` gives it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
