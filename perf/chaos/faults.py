"""The faults: what each does, what it may do to calls, and how soon new calls are answered after it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from harness.network import Node

from chaos.deployment import ANY, GATEWAY_1, PARTS, A, Deployment
from chaos.evidence import Effect
from parley.errors import ParleyError
from parley.launcher.models import leave_out_absent, model_folders
from parley.launcher.options import TINY_PROFILE, ServerOptions

RECOVERY_S = 10.0
"""From the end of a fault to the end of the first answer in a new call."""
AGENT = "voice_agent"
USED = (
    "nemotron_streaming",
    "parakeet_transcribe",  # writes the final texts, with the two below
    "parakeet_encoder",
    "parakeet_decoder",
    "smart_turn",
    "qwen3",
    "espeak",
    AGENT,
)
"""Models that a call of the profile tiny needs, directly or through others."""
_LASTING_S = 15.0
_RESET_S, _RECONNECTED_S = 0.3, 20.0
_LOST_PERCENT = 15
_RESTART = "the server starts again, with all of its models"
_ENGINE = "qwen3"
_ENGINE_STARTS = "vLLM starts again, which takes 20 to 30 s beside calls on two cores"
_HERE = {A: RECOVERY_S, GATEWAY_1: RECOVERY_S}
_AFTER_ENGINE = {A: 60.0, GATEWAY_1: RECOVERY_S}
_ELSEWHERE = {ANY: RECOVERY_S, GATEWAY_1: RECOVERY_S, A: 90.0}


class FaultError(ParleyError):
    """A fault could not be caused here."""

    code = "no_fault"


async def _no_problems(_: Deployment) -> list[str]:
    return []


@dataclass(frozen=True)
class Fault:
    """One fault; an object is used once."""

    name: str
    """For the command line."""
    what: str
    """In a few words, for people."""
    cause: Callable[[Deployment], AbstractAsyncContextManager[None]]
    """Causes it on entering, and takes it away on leaving, where it does not pass by itself.

    Both may raise ParleyError.
    """
    touches: Mapping[str, Effect] = field(default_factory=dict)
    """What it may do, at most, to what depends on a part of the deployment; it touches nothing else."""
    recovery_s: Mapping[str, float] = field(default_factory=lambda: _HERE)
    """By where new callers call, the longest time until one is answered (seconds)."""
    because: str = ""
    """Why that is more than :data:`RECOVERY_S`."""
    lasts_s: float = 0.0
    """Until it is ended (seconds). 0: it has passed as soon as it is there."""
    check: Callable[[Deployment], Awaitable[list[str]]] = _no_problems
    """What else is wrong after it, or why it proves nothing."""

    def allows(self, where: str) -> Effect:
        """What it may do to a call, or a request, at this place."""
        return max((self.touches.get(part, Effect.NOTHING) for part in PARTS[where]), default=Effect.NOTHING)


@asynccontextmanager
async def nothing(_: Deployment) -> AsyncIterator[None]:
    """Where this has effects, the machine is too busy for the other faults to mean anything."""
    yield


def _kill_model(deployment: Deployment, model: str, number: signal.Signals) -> int:
    """Send the signal to one process of a model of server ``a``; returns its id."""
    stub = next(iter(deployment.a.stubs(model)), None)
    if stub is None:
        raise FaultError(f"{model} has no process")
    os.kill(stub.pid, number)
    return stub.pid


def signal_model(model: str, number: signal.Signals) -> Fault:
    """A process of a model of server ``a`` is killed, or stopped."""
    verb = "stop" if number == signal.SIGSTOP else "kill"
    effect = Effect.MOVE if model == AGENT else Effect.TURN if model in USED else Effect.NOTHING
    hit: list[int] = []

    @asynccontextmanager
    async def cause(deployment: Deployment) -> AsyncIterator[None]:
        hit.append(_kill_model(deployment, model, number))
        yield

    async def check(deployment: Deployment) -> list[str]:
        living = [stub.pid for stub in deployment.a.stubs(model)]
        is_replaced = living and not set(hit) & set(living)
        return [] if is_replaced else [f"the process of {model} was not replaced"]

    return Fault(
        f"{verb}-{model}",
        f"a process of {model} is {'stopped' if verb == 'stop' else 'killed'}",
        cause,
        {A: effect},
        recovery_s=_AFTER_ENGINE if model == _ENGINE else _HERE,
        because=_ENGINE_STARTS if model == _ENGINE else "",
        check=check,
    )


def signal_server(number: signal.Signals) -> Fault:
    """The ``tritonserver`` of server ``a`` is killed, or stopped."""
    verb = "stop" if number == signal.SIGSTOP else "kill"
    hit: list[int] = []

    @asynccontextmanager
    async def cause(deployment: Deployment) -> AsyncIterator[None]:
        hit.append(deployment.a.triton_pid)
        if not hit[0]:
            raise FaultError("server a does not run")
        os.kill(hit[0], number)
        yield

    async def check(deployment: Deployment) -> list[str]:
        return [] if deployment.a.triton_pid not in (0, *hit) else ["tritonserver was not replaced"]

    return Fault(
        f"{verb}-server",
        f"tritonserver is {'stopped' if verb == 'stop' else 'killed'}",
        cause,
        {A: Effect.MOVE},
        recovery_s=_ELSEWHERE,
        because=_RESTART,
        check=check,
    )


@asynccontextmanager
async def kill_gateway(deployment: Deployment) -> AsyncIterator[None]:
    """Kill ``gateway-1``, with the collector on its node; start both, as a supervisor would do."""
    deployment.gateway_1.kill()
    yield
    await deployment.gateway_1.start()
    await deployment.start_collector()


def fill_disk(kills: str = "") -> Fault:
    """The disk of server ``a`` has no byte left: its state, log, temporary files and caches are there.

    Args:
        kills: A process of this model is killed meanwhile, and has to be replaced without a disk.
    """

    @asynccontextmanager
    async def cause(deployment: Deployment) -> AsyncIterator[None]:
        if not deployment.a.fill_disk():
            raise FaultError("the disk was full already")
        if kills:
            _kill_model(deployment, kills, signal.SIGKILL)
        yield
        deployment.a.free_disk()

    return Fault(
        f"disk-full-{kills}" if kills else "disk-full",
        f"the disk of a server is full{f', and a process of {kills} is killed' if kills else ''}",
        cause,
        {A: Effect.TURN if kills else Effect.NOTHING},
        lasts_s=_LASTING_S,
    )


@asynccontextmanager
async def fill_shared_memory(deployment: Deployment) -> AsyncIterator[None]:
    """Leave no byte in the ``/dev/shm`` of server ``a``, in which Triton and its models exchange tensors."""
    if not deployment.a.fill_shared_memory():
        raise FaultError("the shared memory was full already")
    yield
    if deployment.a.pid:  # the server has not ended with it
        deployment.a.free_shared_memory()


def spoil_link(
    name: str, what: str, lasts_s: float, begin: Callable[[Node], None], end: Callable[[Node], None]
) -> Fault:
    """The network of server ``a`` is cut, loses packets, or resets connections."""

    @asynccontextmanager
    async def cause(deployment: Deployment) -> AsyncIterator[None]:
        begin(deployment.node_a)
        yield
        end(deployment.node_a)

    return Fault(
        name,
        what,
        cause,
        {A: Effect.MOVE},
        recovery_s={ANY: _RECONNECTED_S, A: _RECONNECTED_S, GATEWAY_1: RECOVERY_S},
        because="gRPC waits before it tries a connection again",
        lasts_s=lasts_s,
    )


async def check_loss(deployment: Deployment) -> list[str]:
    """Packets were lost."""
    return [] if deployment.node_a.dropped() else ["no packet was lost"]


@asynccontextmanager
async def kill_redis(deployment: Deployment) -> AsyncIterator[None]:
    """Kill the Redis that ``gateway-1`` counts requests in; it comes back empty."""
    if not deployment.redis.answers():
        raise FaultError("Redis does not answer")
    deployment.redis.kill()
    yield
    await deployment.redis.start()


@asynccontextmanager
async def stop_collector(deployment: Deployment) -> AsyncIterator[None]:
    """End the collector that ``gateway-1`` sends traces to; it comes back without those that it had."""
    if not deployment.count_traces():
        raise FaultError("there are no traces")
    await deployment.stop_collector()
    yield
    deployment.traces.unlink()
    await deployment.start_collector()


async def check_traces(deployment: Deployment) -> list[str]:
    """Traces come again."""
    for _ in range(40):
        if deployment.count_traces():
            return []
        await asyncio.sleep(0.25)
    return ["no traces came after the collector was back"]


@asynccontextmanager
async def renew_certificate(deployment: Deployment) -> AsyncIterator[None]:
    """Replace certificate and key of ``gateway-1``, one after the other."""
    deployment.renew_certificate()
    yield


async def check_certificate(deployment: Deployment) -> list[str]:
    """The new one is shown."""
    shown = await deployment.shown_certificate()
    renewed = shown.strip() == deployment.certificate.read_text().strip()
    return [] if renewed else ["the old certificate is still shown"]


def list_models() -> list[str]:
    """The models of the profile tiny whose weights are there."""
    options, _ = leave_out_absent(ServerOptions(profile=TINY_PROFILE), os.environ)
    return sorted(folder.name for folder in model_folders(options))


def make_faults() -> dict[str, Fault]:
    """All faults, by name."""
    at_gateway = {GATEWAY_1: RECOVERY_S}
    faults = [
        Fault("nothing", "nothing happens", nothing, lasts_s=_LASTING_S),
        *(
            signal_model(model, number)
            for model in list_models()
            for number in (signal.SIGKILL, signal.SIGSTOP)
        ),
        signal_server(signal.SIGKILL),
        signal_server(signal.SIGSTOP),
        Fault(
            "kill-gateway",
            "a gateway is killed, and started again",
            kill_gateway,
            {GATEWAY_1: Effect.LOSS},
            at_gateway,
        ),
        fill_disk(),
        fill_disk(kills="espeak"),
        Fault(
            "shm-full",
            "the shared memory of a server is full",
            fill_shared_memory,
            {A: Effect.MOVE},
            _ELSEWHERE,
            _RESTART,
            _LASTING_S,
        ),
        spoil_link("cut-server", "the network of a server is cut", _LASTING_S, Node.cut, Node.mend),
        spoil_link(
            "reset-connections",
            "all connections of a server are reset",
            _RESET_S,
            lambda node: node.reset(on=True),
            lambda node: node.reset(on=False),
        ),
        replace(
            spoil_link(
                "lose-packets",
                f"the link of a server loses {_LOST_PERCENT} % of its packets",
                _LASTING_S,
                lambda node: node.lose(_LOST_PERCENT),
                lambda node: node.lose(0),
            ),
            check=check_loss,
        ),
        Fault("redis-away", "Redis is killed, and comes back", kill_redis, {}, at_gateway, "", _LASTING_S),
        Fault(
            "collector-away",
            "the collector of traces is ended, and comes back",
            stop_collector,
            {},
            at_gateway,
            lasts_s=_LASTING_S,
            check=check_traces,
        ),
        Fault(
            "certificate",
            "the certificate of a gateway is renewed",
            renew_certificate,
            {},
            at_gateway,
            check=check_certificate,
        ),
    ]
    return {fault.name: fault for fault in faults}
