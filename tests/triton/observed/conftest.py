"""One server that logs in JSON and sends its spans to a collector, for all tests of this folder."""

from __future__ import annotations

import pytest
from collector import collecting
from leftovers import ANY_PORTS

from parley.launcher import EmbeddedServer, ServerOptions


@pytest.fixture(scope="package")
def observed(tmp_path_factory):
    """The server and its collector. Gateways of this process send their spans there too."""
    with pytest.MonkeyPatch.context() as environment, collecting() as collector:
        environment.setenv("PARLEY_LOG_FORMAT", "json")
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        state = tmp_path_factory.mktemp("observed") / "state"
        with EmbeddedServer(ServerOptions(state_dir=state, **ANY_PORTS)) as server:
            yield server, collector
