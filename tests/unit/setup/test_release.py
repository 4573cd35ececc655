"""``make release``: one version everywhere, notes, and wheels that hold what they should."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "build"))

import release  # noqa: E402
from release import ReleaseError, build_wheels, check_clean, read_notes, read_version  # noqa: E402

VERSION = read_version(ROOT)
CHANGES = "# Changelog\n\n## 1.2.0 (2026-11-28)\n\n- New.\n\n## 1.1.0 (2026-11-01)\n\n- Old.\n"
TAG = r"parley/(?:gateway|worker-cpu|worker-gpu|weights):(\d+\.\d+\.\d+)"


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("deploy/helm/parley/Chart.yaml", r'^(?:version|appVersion): "?([\d.]+)"?$'),
        ("deploy/helm/parley/README.md", TAG),
        ("deploy/eks/README.md", TAG),
        *(
            (f"build/images/{name}.Containerfile", r"^ARG VERSION=(\S+)$")
            for name in ("gateway", "worker-cpu", "worker-gpu")
        ),
        ("clients/livekit-plugins-parley/livekit/plugins/parley/version.py", r'"([\d.]+)"'),
        ("clients/pipecat-parley/pyproject.toml", r'^version = "([\d.]+)"$'),
        ("CHANGELOG.md", r"\A(?:(?!^## ).)*^## (\S+) \("),
    ],
)
def test_version_is_the_same_everywhere(file, pattern):
    found = set(re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE | re.DOTALL))
    assert found == {VERSION}


def test_read_notes_returns_the_newest_section():
    assert read_notes(CHANGES, "1.2.0") == "- New.\n"


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        (CHANGES, "1.3.0"),
        (CHANGES.replace(" (2026-11-28)", " (unreleased)"), "1.2.0"),
        (CHANGES.replace("- New.", ""), "1.2.0"),
        ("", "1.2.0"),
    ],
)
def test_read_notes_without_a_dated_section_of_the_version_is_refused(changes, version):
    with pytest.raises(ReleaseError):
        read_notes(changes, version)


def test_check_clean_names_files_that_are_not_committed(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    check_clean(tmp_path)
    (tmp_path / "new.txt").touch()
    with pytest.raises(ReleaseError, match=r"new\.txt"):
        check_clean(tmp_path)


def test_main_with_an_unreleased_changelog_builds_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(release, "read_version", lambda _: "9.9.9")
    monkeypatch.setattr(release, "build_wheels", pytest.fail)
    assert release.main([]) == 1
    assert "## 9.9.9 (YYYY-MM-DD)" in capsys.readouterr().err


def test_wheels_hold_packages_and_page_and_their_sums(tmp_path):
    wheels = {wheel.name.partition("-")[0]: wheel for wheel in build_wheels(ROOT, tmp_path / "dist")}
    assert set(wheels) == {"parley", "pipecat_parley", "livekit_plugins_parley"}
    for line in (tmp_path / "dist" / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((tmp_path / "dist" / name).read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(wheels["parley"]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"parley-{VERSION}.dist-info/METADATA").decode()
    for name in (
        "parley/protocol.py",
        "parley/launcher/repository/parley_control/config.pbtxt",
        "parley/runtime/extensions.toml",
        "parley_torch/canaries.py",
        "parley_client/__init__.py",
        "parley_gateway/apis/page/static/index.html",
    ):
        assert name in names
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]
    assert re.search(
        r"^Requires-Dist: tritonclient\[grpc\]>=[\d.]+; extra == 'client'$",
        metadata,
        re.MULTILINE,
    )
