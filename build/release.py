#!/usr/bin/env python
"""Makes a release: wheels, checksums and notes in dist/, and images with --images.

    make release                    # of the version in pyproject.toml, from a clean checkout
    make release ARGS=--images      # with the images, under the version as their tag

The version is that of pyproject.toml, and the newest heading of CHANGELOG.md.
Nothing is published or tagged: the commands for that are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "clients/parley-client", "clients/pipecat-parley", "clients/livekit-plugins-parley")
_HEADING = re.compile(r"^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?$", re.MULTILINE)


class ReleaseError(Exception):
    """The checkout cannot be released; the message says why."""


def read_version(root: Path) -> str:
    """The version of a checkout; a test compares it with the other places that it is written in."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def read_notes(changelog: str, version: str) -> str:
    """What the newest section of a changelog says.

    Raises:
        ReleaseError: it is not of this version, has no date, or is empty.
    """
    headings = list(_HEADING.finditer(changelog))
    if not headings or headings[0][1] != version or headings[0][2] is None:
        raise ReleaseError(f"the newest section of CHANGELOG.md is not headed ## {version} (YYYY-MM-DD)")
    end = headings[1].start() if len(headings) > 1 else len(changelog)
    notes = changelog[headings[0].end() : end].strip()
    if not notes:
        raise ReleaseError(f"CHANGELOG.md says nothing about {version}")
    return notes + "\n"


def check_clean(root: Path) -> None:
    """Raise ReleaseError where files differ from the commit that the images are labelled with."""
    command = ["git", "-C", str(root), "status", "--porcelain"]
    changed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if changed:
        raise ReleaseError(f"commit first; these differ from the last commit:\n{changed}")


def build_wheels(root: Path, target: Path) -> list[Path]:
    """Build the wheel of each project into the folder ``target``, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for project in PROJECTS:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        subprocess.run(command, cwd=root / project, stdout=subprocess.DEVNULL, check=True)
    wheels = sorted(target.glob("*.whl"))
    sums = [f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n" for wheel in wheels]
    (target / "SHA256SUMS").write_text("".join(sums))
    return wheels


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 made, 1 the checkout cannot be released."""
    parser = argparse.ArgumentParser(
        prog="make release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", action="store_true", help="build the images too (docker, podman or buildah)"
    )
    args = parser.parse_args(argv)
    target = ROOT / "dist"
    try:
        version = read_version(ROOT)
        notes = read_notes((ROOT / "CHANGELOG.md").read_text(), version)
        check_clean(ROOT)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for wheel in build_wheels(ROOT, target):
        print(wheel.relative_to(ROOT))
    (target / "NOTES.md").write_text(notes)
    if args.images:
        command = [str(ROOT / "build" / "images" / "build"), "--tag", version]
        if status := subprocess.run(command, check=False).returncode:
            return status
    print(f"next: git tag -a v{version} -F dist/NOTES.md && git push origin v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
