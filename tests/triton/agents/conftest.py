"""One server with folders of agents, of calls and of records, for all tests of this folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from leftovers import ANY_PORTS, leftovers

from parley.calls.folder import CallFolder
from parley.launcher import EmbeddedServer, ServerOptions
from parley_client.cli.commands.run import RECORD_VARIABLE

INSTANCES = 2  # of the agent in the profile tiny


@dataclass
class AgentsServer:
    """A server with the folders ``agents``, ``calls`` and ``records`` of a folder."""

    running: EmbeddedServer
    folder: Path

    @property
    def address(self):
        return self.running.endpoints.grpc

    @property
    def agents(self):
        return self.folder / "agents"

    @property
    def calls(self):
        """The recorded ones, the newest first."""
        return CallFolder(self.folder / "calls").entries.newest()

    def said(self):
        return self.running.log_path.read_text()

    def wait_until_said(self, line, times=INSTANCES):
        """Wait until the log has a line so often: each process of the agent reads the folder."""
        deadline = time.monotonic() + 60
        while self.said().count(line) < times:
            assert time.monotonic() < deadline, line
            time.sleep(0.1)

    def write_agents(self, **definitions):
        """Write files of agents, and wait until they are served."""
        for name, definition in definitions.items():
            (self.agents / f"{name}.toml").write_text(definition)
        for name in definitions:
            self.wait_until_said(f"the agent {name} is served to new calls")

    def remove_agents(self, *names):
        for name in names:
            (self.agents / f"{name}.toml").unlink(missing_ok=True)


@pytest.fixture(scope="package")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    (folder / "agents").mkdir()
    environment = {
        "PARLEY_VOICE_AGENT_AGENTS": str(folder / "agents"),
        "PARLEY_VOICE_AGENT_CALLS": str(folder / "calls"),
        RECORD_VARIABLE: str(folder / "records"),
    }
    options = ServerOptions(state_dir=folder / "state", environment=environment, **ANY_PORTS)
    with EmbeddedServer(options) as running:
        session = running.pid
        yield AgentsServer(running, folder)
    assert leftovers(session, running.shm_prefix) == ([], [])
