"""build/images/build: package sources and commands; the Containerfiles beside the code that they repeat."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from parley.launcher.__main__ import parser, read_options
from parley.launcher.options import GPU_PROFILE, OPEN_PROFILE

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from provision import images  # noqa: E402
from provision.images import FOLDER, IMAGES, Sources, build_command, find_tool, read_sources  # noqa: E402
from provision.system import SetupError  # noqa: E402


def test_a_build_gets_indexes_and_certificates_but_no_folders(tmp_path):
    config = {
        "index-url": "https://packages.test/simple",
        "extra-index-url": f"file://{tmp_path} https://more.test/simple",
        "find-links": f"{tmp_path} https://wheels.test/",
        "cert": "/etc/ca.pem",
        "no-index": "",
        "cache-dir": "/somewhere",
    }
    assert read_sources(config) == Sources(
        {
            "index-url": "https://packages.test/simple",
            "extra-index-url": "https://more.test/simple",
            "find-links": "https://wheels.test/ /wheels",
            "cert": "/run/secrets/ca",
        },
        "/etc/ca.pem",
        str(tmp_path),
    )
    assert read_sources({}) == Sources({}, "", "")


def test_two_folders_of_wheels_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(SetupError, match="one folder of wheels"):
        read_sources({"find-links": f"{tmp_path}/a {tmp_path}/b"})


@pytest.mark.parametrize("tool", ["docker", "podman", "buildah"])
def test_package_sources_are_secrets_and_not_arguments(tool):
    command = build_command(
        tool,
        "gateway",
        tag="v1",
        pip=Path("/x/pip.conf"),
        sources=Sources({"index-url": "https://user:password@packages.test"}, "/etc/ca.pem", "/wheels"),
        arguments={"BASE_IMAGE": "debian:trixie-slim"},
    )
    assert command[:2] == [tool, "build"]
    assert ("--format" in command) is (tool != "docker")
    assert "id=pip,src=/x/pip.conf" in command
    assert "id=ca,src=/etc/ca.pem" in command
    assert "wheels=/wheels" in command
    assert "BASE_IMAGE=debian:trixie-slim" in command
    assert "parley/gateway:v1" in command
    assert not [part for part in command if "password" in part]


def test_without_a_program_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(images.shutil, "which", lambda _: None)
    with pytest.raises(SetupError, match=r"docker \(with its daemon\), podman or buildah"):
        find_tool("")
    with pytest.raises(SetupError, match="podman does not work here"):
        find_tool("podman")


def test_the_image_for_gpus_needs_a_base(capsys):
    with pytest.raises(SystemExit):
        images.main(["worker-gpu"])
    assert "--triton-image" in capsys.readouterr().err


def test_every_image_has_its_file():
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.Containerfile")} == set(IMAGES)


def instruction(name, text):
    """The last instruction of this name, without line breaks."""
    return re.findall(rf"^{name} ((?:.*\\\n)*.*)$", text, re.MULTILINE)[-1].replace("\\\n", "")


def test_both_workers_are_started_by_the_launcher():
    def started(name):
        text = (FOLDER / f"{name}.Containerfile").read_text()
        entry, usual = (json.loads(instruction(part, text)) for part in ("ENTRYPOINT", "CMD"))
        assert entry[:5] == ["tini", "--", "python", "-m", "parley.launcher"]
        return read_options(parser().parse_args([*entry[5:], *usual]))

    cpu, gpu = started("worker-cpu"), started("worker-gpu")
    assert (cpu.profile, gpu.profile) == (OPEN_PROFILE, GPU_PROFILE)
    assert gpu.triton == Path("/opt/tritonserver")
    assert gpu.ready_timeout_s > cpu.ready_timeout_s  # it compiles
    same = {"triton": None, "profile": cpu.profile, "ready_timeout_s": cpu.ready_timeout_s}
    assert dataclasses.replace(gpu, **same) == cpu


def test_all_images_have_the_same_user_and_folder():
    for name in ("gateway", "worker-cpu", "worker-gpu"):
        text = (FOLDER / f"{name}.Containerfile").read_text()
        assert instruction("USER", text) == "10001:10001"
        assert instruction("WORKDIR", text) == "/opt/parley"
        version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert version is not None
        assert text.count(f"ARG VERSION={version[1]}\n") == 2
