"""What the gateway counts, in the form of Prometheus."""

from __future__ import annotations

from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from parley.errors import ParleyError
from parley_client.errors import CallLostError
from parley_client.events import MoveReason
from parley_gateway.servers import Servers

# Seconds; the goal is 3 ms for half of all frames and 10 ms for 99 of 100.
_ADDED_BUCKETS = (0.0001, 0.0003, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.calls = gauge("parley_gateway_calls", "Calls that are open, by API", ["api"])
        self.opened = counter("parley_gateway_calls_opened", "Calls that were opened, by API", ["api"])
        self.draining = gauge(
            "parley_gateway_draining", "1 while no new calls are taken, because the process ends"
        )
        self.sip_registered = gauge(
            "parley_gateway_sip_registered",
            "1 while the SIP account is registered at its trunk",
        )
        self.stages = gauge(
            "parley_gateway_stage_requests",
            "Requests and streams of single stages that are under way, by API",
            ["api"],
        )
        self.recordings = counter(
            "parley_gateway_recordings",
            "Recordings, by outcome: plain (read without a decoder), decoded, refused, busy, failed",
            ["outcome"],
        )
        self.uploads = gauge("parley_gateway_upload_bytes", "Bytes that are reserved for recordings")
        self.refused = counter(
            "parley_gateway_refusals", "Requests that were refused, by error code", ["code"]
        )
        self.crowded = counter(
            "parley_gateway_connections_crowded",
            "Connections that were closed or refused, and requests that were refused, because of too many",
            ["reason"],
        )
        self.passed_on = counter(
            "parley_gateway_passed_on",
            "Requests that belong to another gateway, by outcome (answered by it, failed)",
            ["outcome"],
        )
        self.lost = counter("parley_gateway_calls_lost", "Calls that broke, by error code", ["code"])
        self.failovers = counter("parley_gateway_failovers", "Times that a server refused a call for now")
        self.moves = counter(
            "parley_gateway_moves",
            "Attempts to go on with a call at another server, by reason (lost, silent, go_away) and outcome "
            "(moved, failed)",
            ["reason", "outcome"],
        )
        self.takeovers = counter(
            "parley_gateway_takeovers",
            "Requests to take a session over, by outcome: claimed, refused, unavailable",
            ["outcome"],
        )
        self.checkpoints = counter(
            "parley_gateway_checkpoints",
            "Checkpoints of sessions in the store, by outcome: saved, late (events did not wait for it), "
            "failed, too_large",
            ["outcome"],
        )
        self.takeover_available = gauge(
            "parley_gateway_takeover_available",
            "Whether sessions can be taken over by other gateways: their store is set and answers",
        )
        self.sent = counter("parley_gateway_frames_sent", "WebSocket messages sent, by kind", ["kind"])
        self.received = counter(
            "parley_gateway_frames_received", "WebSocket messages received, by kind", ["kind"]
        )
        self.slow_readers = counter(
            "parley_gateway_slow_readers", "WebSockets closed because their queue was full"
        )
        self.added = Histogram(
            "parley_gateway_added_seconds",
            "From the queueing of a WebSocket message until it was handed to the network",
            buckets=_ADDED_BUCKETS,
            registry=self.registry,
        )
        self.server_ready = gauge("parley_gateway_server_ready", "Whether a server answers", ["server"])
        self.server_users = gauge("parley_gateway_server_users", "Calls and requests on a server", ["server"])
        self.server_load = gauge(
            "parley_gateway_server_load",
            "Sessions of a server as this gateway knows them, as a part of those that it takes",
            ["server"],
        )
        self.server_draining = gauge(
            "parley_gateway_server_draining",
            "Whether a server says that it takes no new sessions",
            ["server"],
        )
        self.discovery_failing = gauge(
            "parley_gateway_discovery_failing",
            "1 while a name or file of servers cannot be used, and those that were found before still count",
            ["source"],
        )

        self.certificate_expires = gauge(
            "parley_gateway_certificate_expires_seconds",
            "When the certificate that the gateway shows is no longer valid, in Unix time",
            ["certificate"],
        )
        # A series that first appears with an incident shows no increase.
        self.lost.labels(CallLostError.code)
        for reason in get_args(MoveReason):
            for outcome in ("moved", "failed"):
                self.moves.labels(reason, outcome)
        for outcome in ("claimed", "refused", "unavailable"):
            self.takeovers.labels(outcome)
        for outcome in ("saved", "late", "failed", "too_large"):
            self.checkpoints.labels(outcome)

    def on_call_failed(self, error: ParleyError, *, has_opened: bool) -> None:
        """Count the error that ended a call: as a refusal if the call had not been opened."""
        if not has_opened:
            self.refused.labels(error.code).inc()
        elif isinstance(error, CallLostError):
            # A call that broke is lost, whatever the last server said; alerts look for this code.
            self.lost.labels(CallLostError.code).inc()
        else:
            self.lost.labels(error.code).inc()

    def set_servers(self, servers: Servers) -> None:
        """Record the state of all servers; the series of those that have left are removed."""
        for gauge in (
            self.server_ready,
            self.server_users,
            self.server_load,
            self.server_draining,
            self.discovery_failing,
        ):
            gauge.clear()
        for server in servers.all:
            self.server_ready.labels(server.address).set(server.is_answering)
            self.server_draining.labels(server.address).set(server.is_draining)
            if (limit := server.limit) is not None:
                self.server_load.labels(server.address).set(server.sessions / max(1, limit))
        for server in (*servers.all, *servers.removed):
            self.server_users.labels(server.address).set(server.users)
        for source, problem in servers.discovery_problems.items():
            self.discovery_failing.labels(source).set(bool(problem))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
