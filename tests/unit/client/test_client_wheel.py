"""The wheel of the client, alone in an environment that has what it requires and nothing of the server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fake_call_server import Triton, event, serving

from parley import protocol

ROOT = Path(__file__).resolve().parents[3]
CLIENT = ROOT / "clients" / "parley-client"
TIMEOUT_S = 60
OF_SERVER = "agent asr canaries engines launcher llm models runtime triton tts".split()


def closure(requirements):
    """The installed distributions that these requirements need, without extras of theirs."""
    found, waiting = {}, list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = re.match(r"[\w.-]+", requirement)[0]
        if re.search(r"extra\s*==", requirement) or name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        more = found[name].requires or []
        grpc = [one for one in more if "extra ==" in one and "'grpc'" in one.replace('"', "'")]
        waiting += more + [one.partition(";")[0] for one in grpc if "[grpc]" in requirement]
    return found


def install(folder, *projects):
    """The interpreter of an environment with wheels and links to the packages that they require."""
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for project in projects:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, capture_output=True, check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    required = [
        requirement
        for installed in metadata.distributions(path=[str(packages)])
        for requirement in installed.requires
        if not requirement.startswith("parley-client")
    ]
    for distribution in closure(required).values():
        for file in distribution.files:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Of the client alone."""
    return install(tmp_path_factory.mktemp("alone"), CLIENT)


@pytest.fixture(scope="module")
def python_of_server(tmp_path_factory):
    """Of client and server, without what the server's extras bring."""
    return install(tmp_path_factory.mktemp("server"), CLIENT, ROOT)


def run(python, *arguments, folder):
    command = [str(python), "-I", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Agent(Triton):
    """Answers the first audio with a piece of speech and the metrics of the turn."""

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        answered = False
        async for message in super().ModelStreamInfer(requests, context):
            outputs = message.infer_response.raw_output_contents
            is_audio = bool(outputs) and b'"audio"' in outputs[0]
            if not (is_audio and answered):
                yield message
            if is_audio and not answered:
                answered = True
                yield event(protocol.TurnMetrics(turn=1))


async def test_client_alone_holds_a_call(python, tmp_path):
    soundfile.write(tmp_path / "question.wav", np.full(1_600, 900, np.int16), 16_000)
    async with serving(Agent()) as (address, _):
        arguments = (str(ROOT / "examples" / "ten_lines.py"), "question.wav", address)
        done = await asyncio.to_thread(run, python, *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert soundfile.read(tmp_path / "answer.wav", dtype="int16")[0].tolist() == [900] * 1_600


def test_client_alone_has_nothing_of_the_server(python, tmp_path):
    code = f"import importlib.util as u; print([n for n in {OF_SERVER} if u.find_spec('parley.' + n)])"
    assert run(python, "-c", code, folder=tmp_path).stdout == "[]\n"


def test_command_of_the_client_alone_refuses_what_needs_the_server_in_one_line(python, tmp_path):
    refused = run(python, "-m", "parley_client", "probe", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "parley: parley probe needs the package parley, the server, which is not installed here (usage)"
    ]
    shown = run(python, "-m", "parley_client", "say", "--help", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("command", ["run", "test"])
def test_command_without_the_extra_that_it_needs_is_refused_in_one_line(python_of_server, tmp_path, command):
    refused = run(python_of_server, "-m", "parley_client", command, "own.py", folder=tmp_path)
    assert refused.returncode == 2
    needed = "the packages of parley's extra “agent”, which are not installed here"
    assert refused.stderr.splitlines() == [f"parley: parley {command} needs {needed} (usage)"]


def test_commands_without_extras_of_the_server_are_listed(python_of_server, tmp_path):
    shown = run(python_of_server, "-m", "parley_client", "gateway", "--help", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_importing_the_client_loads_few_modules_of_parley():
    code = "import parley_client, sys; print(sum(m.startswith('parley.') for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(loaded.stdout) <= 12
