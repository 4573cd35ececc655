"""What is in the images, and what is not."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import TOOLS
from containers import ROOT, USER, mounted, run, settings

NAMES = ("gateway", "worker-cpu")
BUILD_TOOLS = ("gcc", "g++", "cc", "ld", "make", "git", "pip", "pip3", "uv", "npm", "curl")
PROGRAMS = ("usr/bin", "usr/sbin", "usr/local/bin", "opt/parley/.venv/bin")
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(None if fault is None else str(fault))
"""
FILES = sorted((ROOT / "build" / "images").glob("*.Containerfile"))


@pytest.fixture(scope="module", params=NAMES)
def name(request, built):
    assert request.param in built(request.param)  # its size is printed
    return request.param


@pytest.fixture(scope="module")
def files(name):
    with mounted(name) as folder:
        yield folder


def test_an_image_runs_as_a_user_of_its_own_and_says_what_it_is(name):
    config = settings(name)
    assert config["User"] == f"{USER}:{USER}"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["StopSignal"] == "SIGTERM"
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == f"parley-{name}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert set(labels) >= {
        f"org.opencontainers.image.{one}" for one in ("version", "revision", "description")
    }


def test_image_has_no_build_tools(files):
    left = [tool for tool in BUILD_TOOLS for folder in PROGRAMS if (files / folder / tool).exists()]
    assert left == []
    installed = {
        path.name.partition("-")[0] for path in files.glob("opt/parley/.venv/lib/*/site-packages/*.dist-info")
    }
    assert installed.isdisjoint({"pip", "uv", "hatchling", "editables"})
    for folder in ("var/lib/apt/lists", "var/cache/apt", "root", "tmp"):
        found = [
            path for path in (files / folder).rglob("*") if path.is_file() and not path.name.startswith(".")
        ]
        assert found == [], folder


def test_only_caches_and_state_belong_to_the_user(files):
    owned = {
        str(path.relative_to(files))
        for top in ("opt", "var", "usr", "etc")
        for path in [files / top, *(files / top).rglob("*")]
        if not path.is_symlink() and path.stat().st_uid == USER
    }
    state = {"var/lib/parley", "var/lib/parley/models", "var/lib/parley/server"}
    assert owned - {"var/cache/parley"} <= state


def test_the_sbom_lists_what_is_installed(name, files):
    text = (files / "opt/parley/sbom.cdx.json").read_text()
    done = subprocess.run(
        [TOOLS / "python", "-c", VALIDATE], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    bom = json.loads(text)
    assert bom["metadata"]["component"]["name"] == f"parley-{name}"
    listed = [one["purl"].partition("?")[0] for one in bom["components"]]
    shown = run(
        "dpkg-query", f"--admindir={files}/var/lib/dpkg", "--show", "--showformat=${Package} ${Version}\\n"
    )
    debian = {line.split()[0] for line in shown.splitlines()}
    assert {one["name"] for one in bom["components"] if one["purl"].startswith("pkg:deb/")} == debian
    packages = list(files.glob("opt/parley/.venv/lib/*/site-packages/*.dist-info"))
    assert len([purl for purl in listed if purl.startswith("pkg:pypi/")]) == len(packages)
    assert any(purl.startswith("pkg:pypi/parley@") for purl in listed)


def test_secrets_of_the_build_are_not_in_it(files):
    assert not (files / "etc/pip.conf").exists()
    assert not list((files / "run").glob("secrets/*"))
    assert not (files / "wheels").exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_hadolint_finds_no_fault(file):
    done = subprocess.run([TOOLS / "hadolint", file], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


def test_every_package_of_the_gpu_image_has_a_wheel_for_its_platform(tmp_path):
    from provision.uv import Uv

    uv = Uv(ROOT)
    uv.prepare()
    platform = ("--python-version=3.12", "--python-platform=x86_64-manylinux_2_39")
    lock = ROOT / "build/requirements/serve-gpu.txt"
    command = ("install", "--dry-run", "--target", str(tmp_path), "--no-deps", "--require-hashes")
    uv.run("pip", *command, *platform, "--only-binary=:all:", "-r", str(lock))
