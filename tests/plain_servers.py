"""A plain ``tritonserver``, started by the command of docs/plain-triton.md in an empty environment."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as triton

from parley.launcher.cleanup import new_prefix, remove_left
from parley.launcher.command import assemble_backend, find_installation
from parley.launcher.options import GPU_PROFILE, ROOT, ServerOptions, choose_ports
from parley.launcher.processes import kill_session

START_S = 240.0
STOP_S = 60.0
_INDENTED = re.compile(r"^    (\S.*tritonserver --model-repository.*)$", re.MULTILINE)
# As in NVIDIA's images: it prints what the parts of a folder have to say, and becomes the command.
ENTRY_POINT = """#!/bin/bash
shopt -s nullglob extglob
for part in "$(dirname "$0")"/entrypoint.d/*.sh; do source "$part"; done
if [[ $# -eq 0 ]]; then exec /bin/bash; else exec "$@"; fi
"""


@dataclass
class PlainServer:
    """``process`` is the shell's, which becomes ``tritonserver``."""

    process: subprocess.Popen
    address: str
    log: Path

    def said(self):
        return self.log.read_text(errors="replace")

    def stop(self):
        """Ask the server to end; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


def page_command(profile):
    """The command of the page, for a profile, without its prompt."""
    (command,) = _INDENTED.findall((ROOT / "docs/plain-triton.md").read_text())
    assert command.endswith(" --model-config-name=tiny")
    command = command.removesuffix(" --model-config-name=tiny")
    return command if profile == GPU_PROFILE else f"{command} --model-config-name={profile}"


def install(folder, options, prefix, *, twin=False):
    """An installation of Triton in a folder; returns that of its program.

    The program is a wrapper: the real one has no Python backend at its usual place here, and the ports are
    those of the test.
    """
    installation = find_installation()
    libraries = [
        installation.libraries,
        *([installation.libpython_dir] if installation.libpython_dir else []),
    ]
    flags = [
        f"--backend-directory={assemble_backend(installation, folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--grpc-port={options.grpc_port}",
        f"--http-port={options.http_port}",
        f"--metrics-port={options.metrics_port}",
    ]
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir()
    command = [*(twin_command() if twin else ()), str(installation.tritonserver)]
    program.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={':'.join(map(str, libraries))}\n"
        f'exec {shlex.join(command)} "$@" {shlex.join(flags)}\n'
    )
    program.chmod(0o755)
    return program.parent


def twin_command():
    """Runs a server behind an endpoint that stops as that of Triton 2.71 does."""
    return [sys.executable, str(Path(__file__).with_name("closing_twin.py"))]


@contextmanager
def plain_server(folder, profile, *, entry_point=False, twin=False, command="", wait=True, **environment):
    """Run the command of the page; ``entry_point``: through NVIDIA's, as a container does."""
    options = choose_ports(ServerOptions(state_dir=folder, grpc_port=0, http_port=0, metrics_port=0))
    prefix = new_prefix()
    programs = install(folder, options, prefix, twin=twin)
    arguments = ["sh", "-c", f"exec env {command or page_command(profile)}"]
    if entry_point:
        path = folder / "nvidia_entrypoint.sh"
        path.write_text(ENTRY_POINT)
        path.chmod(0o755)
        arguments = [str(path), *arguments]
    log = folder / "triton.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = PlainServer(process, f"127.0.0.1:{options.grpc_port}", log)
    try:
        if wait:
            _wait_until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        kill_session(process.pid)
        remove_left(prefix)


def _wait_until_ready(server):
    end = time.monotonic() + START_S
    with triton.InferenceServerClient(server.address) as client:
        while not _is_ready(client):
            assert server.process.poll() is None, server.said()[-4000:]
            assert time.monotonic() < end, server.said()[-4000:]
            time.sleep(0.2)


def _is_ready(client):
    try:
        return client.is_server_ready()
    except triton.InferenceServerException:
        return False
