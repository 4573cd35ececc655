"""Building the images, with the container program and the package sources that this machine has."""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from provision.system import SetupError, run_quietly
from provision.uv import Uv, read_pip_config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "images"
IMAGES = ("gateway", "worker-cpu", "weights", "worker-gpu")
DEFAULT = IMAGES[:3]
PREFIX = "parley/"
"""Of the images' names."""

_TOOLS = ("docker", "podman", "buildah")
_CERTIFICATES = "/run/secrets/ca"
_WHEELS = "/wheels"
_QUICK_S = 30.0
_NO_TOOL = """\
no program that builds images works here: docker (with its daemon), podman or buildah.
On Debian: sudo apt-get install buildah"""


class Sources(NamedTuple):
    """Package sources for a build."""

    pip: dict[str, str]
    """Options for the build's own pip.conf."""
    certificates: str
    """PEM file with the machine's certificates; empty: the image's own count."""
    wheels: str
    """Folder with wheels; empty: none."""


def read_sources(config: Mapping[str, str]) -> Sources:
    """The package sources of a build, by this machine's configuration of pip.

    Indexes in folders are left out, because a build does not see them; of folders in ``find-links`` one can
    be passed on.

    Args:
        config: pip's options.

    Raises:
        SetupError: ``find-links`` has several folders.
    """
    options = {
        name: config[name]
        for name in ("index-url", "trusted-host", "proxy", "timeout")
        if config.get(name) and not config[name].startswith("file:")
    }
    if indexes := [url for url in config.get("extra-index-url", "").split() if not url.startswith("file:")]:
        options["extra-index-url"] = " ".join(indexes)
    links = list(dict.fromkeys(config.get("find-links", "").split()))
    folders = [link for link in links if Path(link).is_dir()]
    if len(folders) > 1:
        raise SetupError(f"a build can have one folder of wheels; pip's find-links has {', '.join(folders)}")
    urls = [link for link in links if "://" in link and not link.startswith("file:")]
    if places := [*urls, *([_WHEELS] if folders else [])]:
        options["find-links"] = " ".join(places)
    certificates = config.get("cert", "")
    if certificates:
        options["cert"] = _CERTIFICATES
    return Sources(options, certificates, folders[0] if folders else "")


def build_command(
    tool: str, image: str, *, tag: str, pip: Path, sources: Sources, arguments: Mapping[str, str]
) -> list[str]:
    """The command that builds an image.

    Args:
        tool: docker, podman or buildah.
        image: one of :data:`IMAGES`.
        tag: of the image.
        pip: the build's pip.conf.
        sources: see :func:`read_sources`.
        arguments: of the build.
    """
    command = [tool, "build", "--file", str(FOLDER / f"{image}.Containerfile")]
    command += ["--tag", f"{PREFIX}{image}:{tag}"]
    if tool != "docker":
        # OCI's own format has no health checks; without layers nothing is kept for the next build.
        command += ["--format", "docker", "--layers"]
    command += ["--secret", f"id=pip,src={pip}"]
    if sources.certificates:
        command += ["--secret", f"id=ca,src={sources.certificates}"]
    if sources.wheels:
        command += ["--build-context", f"wheels={sources.wheels}"]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    return [*command, str(ROOT)]


def find_tool(wanted: str) -> str:
    """The program that builds.

    Args:
        wanted: its name; empty: the first that works.

    Raises:
        SetupError: none works; the message says what to install.
    """
    for tool in [wanted] if wanted else _TOOLS:
        if shutil.which(tool) and run_quietly([tool, "info"], _QUICK_S).returncode == 0:
            return tool
    raise SetupError(f"{wanted} does not work here" if wanted else _NO_TOOL)


def _arguments(image: str, options: argparse.Namespace, tool: str) -> dict[str, str]:
    if image == "weights":
        # Programs other than docker take a name without a registry for one of Docker's.
        place = "" if tool == "docker" else "localhost/"
        return {"WORKER_IMAGE": f"{place}{PREFIX}worker-cpu:{options.tag}"}
    revision = run_quietly(["git", "-C", str(ROOT), "rev-parse", "HEAD"], _QUICK_S).stdout.strip()
    found = {"REVISION": revision or "unknown"}
    if image == "worker-gpu":
        return {**found, "TRITON_IMAGE": options.triton_image}
    return {**found, **({"BASE_IMAGE": options.base} if options.base else {})}


def _build(options: argparse.Namespace) -> None:
    tool = find_tool(options.tool)
    uv = Uv(ROOT)
    own = uv.pip if Path(uv.pip[0]).exists() else [sys.executable, "-m", "pip"]
    sources = read_sources(read_pip_config(own))
    with tempfile.TemporaryDirectory(prefix="parley-images-") as folder:
        pip = Path(folder) / "pip.conf"
        config = configparser.RawConfigParser()
        config["global"] = sources.pip
        with pip.open("w", encoding="utf-8") as file:
            config.write(file)
        for image in options.images or DEFAULT:
            arguments = _arguments(image, options, tool)
            command = build_command(
                tool, image, tag=options.tag, pip=pip, sources=sources, arguments=arguments
            )
            print(f"building {PREFIX}{image}:{options.tag} with {tool}", file=sys.stderr, flush=True)
            environment = {**os.environ, **({"DOCKER_BUILDKIT": "1"} if tool == "docker" else {})}
            if status := subprocess.run(command, env=environment, check=False).returncode:
                raise SetupError(f"{tool} ended with status {status}; its message is above")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="build/images/build",
        description="Build the images with docker, podman or buildah.",
    )
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"{', '.join(IMAGES)} (default: {', '.join(DEFAULT)})"
    )
    parser.add_argument("--tool", choices=_TOOLS, default="", help="default: the first that works")
    parser.add_argument("--tag", default="latest", help="of the images (default: %(default)s)")
    parser.add_argument("--base", default="", help="image to build on (default: debian:bookworm-slim)")
    parser.add_argument(
        "--triton-image", default="", help="of worker-gpu: NVIDIA's Triton image with its digest"
    )
    options = parser.parse_args(argv)
    if unknown := [name for name in options.images if name not in IMAGES]:
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(IMAGES)}")
    if "worker-gpu" in options.images and not options.triton_image:
        parser.error("worker-gpu needs --triton-image (docs/deployment.md says which)")
    try:
        _build(options)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
