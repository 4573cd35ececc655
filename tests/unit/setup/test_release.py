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
        ("clients/parley-client/pyproject.toml", r'^version = "([\d.]+)"$'),
        ("clients/parley_client/__init__.py", r'^__version__ = "([\d.]+)"$'),
        ("pyproject.toml", r'"parley-client==([\d.]+)"'),
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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    built = build_wheels(ROOT, tmp_path_factory.mktemp("release") / "dist")
    return {wheel.name.partition("-")[0]: wheel for wheel in built}


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheels_are_listed_with_their_sums(wheels):
    assert set(wheels) == {"parley", "parley_client", "pipecat_parley", "livekit_plugins_parley"}
    for line in wheels["parley"].with_name("SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(wheels["parley"].with_name(name).read_bytes()).hexdigest() == digest


def test_wheels_of_server_and_client_share_no_file_and_leave_none_out(wheels):
    server, client = files_of(wheels["parley"]), files_of(wheels["parley_client"])
    assert not server & client
    folders = {"src/parley": "parley", "src/parley_torch": "parley_torch"}
    folders |= {"clients/gateway/parley_gateway": "parley_gateway", "clients/parley_client": "parley_client"}
    folders |= {"clients/parley_stages": "parley_stages", "clients/parley_testing": "parley_testing"}
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, text=True, capture_output=True, check=True
    )
    packaged = {
        file.replace(folder, name, 1)
        for file in listed.stdout.split()
        for folder, name in folders.items()
        if file.startswith(f"{folder}/") and (ROOT / file).exists()
    }
    assert packaged <= server | client
    assert "parley_gateway/apis/page/static/index.html" in server
    assert not [name for name in server | client if "/tests/" in name or name.endswith(".pyc")]


def test_wheel_of_the_server_requires_the_client_of_its_version(wheels):
    with zipfile.ZipFile(wheels["parley"]) as wheel:
        metadata = wheel.read(f"parley-{VERSION}.dist-info/METADATA").decode()
    assert f"\nRequires-Dist: parley-client=={VERSION}\n" in metadata
