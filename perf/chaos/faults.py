"""The faults: what each does, what it may do to calls, and how soon new calls are answered after it."""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from harness.network import Node

from chaos.deployment import ANY, GATEWAY_1, PARTS, A, Deployment
from chaos.evidence import Effect
from parley.errors import ParleyError
from parley.launcher.models import leave_out_absent, model_folders
from parley.launcher.options import TINY_PROFILE, ServerOptions
from parley.launcher.processes import Stub

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
_RESET_S = 0.3
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


class Fault(ABC):
    """One fault; an object is used once.

    Args:
        name: For the command line.
        what: In a few words, for people.
        touches: What it may do, at most, to what depends on a part of the deployment; it touches nothing
            else.
        recovery_s: By where new callers call, the longest time until one is answered (seconds).
        because: Why that is more than :data:`RECOVERY_S`.
        lasts_s: Until it is ended (seconds). 0: it has passed as soon as it is there.
    """

    def __init__(
        self,
        name: str,
        what: str,
        *,
        touches: Mapping[str, Effect],
        recovery_s: Mapping[str, float],
        because: str = "",
        lasts_s: float = 0.0,
    ) -> None:
        self.name = name
        self.what = what
        self.touches = touches
        self.recovery_s = recovery_s
        self.because = because
        self.lasts_s = lasts_s

    def allows(self, where: str) -> Effect:
        """What it may do to a call, or a request, at this place."""
        return max((self.touches.get(part, Effect.NOTHING) for part in PARTS[where]), default=Effect.NOTHING)

    @abstractmethod
    async def inject(self, deployment: Deployment) -> None:
        """Cause it.

        Raises:
            ParleyError: it cannot be caused.
        """

    async def end(self, deployment: Deployment) -> None:
        """Take it away, where it does not pass by itself.

        Raises:
            ParleyError: it cannot be taken away.
        """
        del deployment

    async def check(self, deployment: Deployment) -> list[str]:
        """What else is wrong after it, or why it proves nothing."""
        del deployment
        return []


class Nothing(Fault):
    """Nothing happens: where this has effects, the machine is too busy for the others to mean anything."""

    def __init__(self) -> None:
        super().__init__(
            "nothing",
            "nothing happens",
            touches={},
            recovery_s=_HERE,
            lasts_s=_LASTING_S,
        )

    async def inject(self, deployment: Deployment) -> None:
        """Do nothing."""


class ModelSignal(Fault):
    """A process of a model of server ``a`` is killed, or stopped."""

    def __init__(self, model: str, number: signal.Signals) -> None:
        verb = "stop" if number == signal.SIGSTOP else "kill"
        effect = Effect.MOVE if model == AGENT else Effect.TURN if model in USED else Effect.NOTHING
        super().__init__(
            f"{verb}-{model}",
            f"a process of {model} is {'stopped' if verb == 'stop' else 'killed'}",
            touches={A: effect},
            recovery_s=_AFTER_ENGINE if model == _ENGINE else _HERE,
            because=_ENGINE_STARTS if model == _ENGINE else "",
        )
        self._model, self._number = model, number
        self._stub: Stub | None = None

    async def inject(self, deployment: Deployment) -> None:
        """Send the signal to one process."""
        self._stub = next(iter(deployment.a.stubs(self._model)), None)
        if self._stub is None:
            raise FaultError(f"{self._model} has no process")
        os.kill(self._stub.pid, self._number)

    async def check(self, deployment: Deployment) -> list[str]:
        """The process was replaced."""
        assert self._stub is not None
        living = deployment.a.stubs(self._model)
        if not living or self._stub.pid in [stub.pid for stub in living]:
            return [f"the process of {self._model} was not replaced"]
        return []


class ServerSignal(Fault):
    """The ``tritonserver`` of server ``a`` is killed, or stopped."""

    def __init__(self, number: signal.Signals) -> None:
        verb = "stop" if number == signal.SIGSTOP else "kill"
        super().__init__(
            f"{verb}-server",
            f"tritonserver is {'stopped' if verb == 'stop' else 'killed'}",
            touches={A: Effect.MOVE},
            recovery_s=_ELSEWHERE,
            because=_RESTART,
        )
        self._number = number
        self._pid = 0

    async def inject(self, deployment: Deployment) -> None:
        """Send the signal."""
        self._pid = deployment.a.pid
        if not self._pid:
            raise FaultError("server a does not run")
        os.kill(self._pid, self._number)

    async def check(self, deployment: Deployment) -> list[str]:
        """It was replaced."""
        return [] if deployment.a.pid not in (0, self._pid) else ["tritonserver was not replaced"]


class GatewayKilled(Fault):
    """``gateway-1`` is killed, and started again, as its supervisor would do."""

    def __init__(self) -> None:
        super().__init__(
            "kill-gateway",
            "a gateway is killed, and started again",
            touches={GATEWAY_1: Effect.LOSS},
            recovery_s={GATEWAY_1: RECOVERY_S},
        )

    async def inject(self, deployment: Deployment) -> None:
        """Kill it, with the collector on its node."""
        deployment.gateway_1.kill()

    async def end(self, deployment: Deployment) -> None:
        """Start both."""
        await deployment.gateway_1.start()
        await deployment.start_collector()


class DiskFull(Fault):
    """The disk of server ``a`` has no byte left: its state, log, temporary files and caches are there.

    Args:
        kills: A process of a model is killed meanwhile, and has to be replaced without a disk.
    """

    def __init__(self, *, kills: str = "") -> None:
        super().__init__(
            f"disk-full-{kills}" if kills else "disk-full",
            f"the disk of a server is full{f', and a process of {kills} is killed' if kills else ''}",
            touches={A: Effect.TURN if kills else Effect.NOTHING},
            recovery_s=_HERE,
            lasts_s=_LASTING_S,
        )
        self._kills = kills

    async def inject(self, deployment: Deployment) -> None:
        """Fill it."""
        if not deployment.a.fill_disk():
            raise FaultError("the disk was full already")
        if self._kills:
            await ModelSignal(self._kills, signal.SIGKILL).inject(deployment)

    async def end(self, deployment: Deployment) -> None:
        """Free it."""
        deployment.a.free_disk()


class SharedMemoryFull(Fault):
    """The ``/dev/shm`` of server ``a`` has no byte left, in which Triton and its models exchange tensors."""

    def __init__(self) -> None:
        super().__init__(
            "shm-full",
            "the shared memory of a server is full",
            touches={A: Effect.MOVE},
            recovery_s=_ELSEWHERE,
            because=_RESTART,
            lasts_s=_LASTING_S,
        )

    async def inject(self, deployment: Deployment) -> None:
        """Fill it."""
        if not deployment.a.fill_shared_memory():
            raise FaultError("the shared memory was full already")

    async def end(self, deployment: Deployment) -> None:
        """Free it, where the server has not ended with it."""
        if deployment.a.launcher:
            deployment.a.free_shared_memory()


class LinkFault(Fault):
    """The network of server ``a`` is cut, loses packets, or resets connections.

    Args:
        name: For the command line.
        what: In a few words, for people.
        lasts_s: Until it is ended (seconds).
        begin: Spoils the link of a node.
        end: Repairs it.
    """

    def __init__(
        self, name: str, what: str, lasts_s: float, begin: Callable[[Node], None], end: Callable[[Node], None]
    ) -> None:
        super().__init__(
            name, what, touches={A: Effect.MOVE}, recovery_s={ANY: RECOVERY_S, **_HERE}, lasts_s=lasts_s
        )
        self._begin, self._end = begin, end

    async def inject(self, deployment: Deployment) -> None:
        """Spoil the link."""
        self._begin(deployment.node_a)

    async def end(self, deployment: Deployment) -> None:
        """Repair it."""
        self._end(deployment.node_a)


class PacketsLost(LinkFault):
    """The link of server ``a`` loses packets in both directions."""

    def __init__(self) -> None:
        super().__init__(
            f"lose-{_LOST_PERCENT}-percent",
            f"the link of a server loses {_LOST_PERCENT} % of its packets",
            _LASTING_S,
            lambda node: node.lose(_LOST_PERCENT),
            lambda node: node.lose(0),
        )

    async def check(self, deployment: Deployment) -> list[str]:
        """Packets were lost."""
        return [] if deployment.node_a.dropped() else ["no packet was lost"]


class RedisAway(Fault):
    """The Redis that ``gateway-1`` counts requests in is killed, and comes back empty."""

    def __init__(self) -> None:
        super().__init__(
            "redis-away",
            "Redis is killed, and comes back",
            touches={},
            recovery_s={GATEWAY_1: RECOVERY_S},
            lasts_s=_LASTING_S,
        )

    async def inject(self, deployment: Deployment) -> None:
        """Kill it."""
        if not deployment.redis.answers():
            raise FaultError("Redis does not answer")
        deployment.redis.kill()

    async def end(self, deployment: Deployment) -> None:
        """Start it again."""
        await deployment.redis.start()


class CollectorAway(Fault):
    """The collector that ``gateway-1`` sends traces to is ended, and comes back."""

    def __init__(self) -> None:
        super().__init__(
            "collector-away",
            "the collector of traces is ended, and comes back",
            touches={},
            recovery_s={GATEWAY_1: RECOVERY_S},
            lasts_s=_LASTING_S,
        )
        self._before = 0

    async def inject(self, deployment: Deployment) -> None:
        """End it."""
        if not deployment.count_traces():
            raise FaultError("there are no traces")
        await deployment.stop_collector()

    async def end(self, deployment: Deployment) -> None:
        """Start it again."""
        self._before = deployment.count_traces()
        await deployment.start_collector()

    async def check(self, deployment: Deployment) -> list[str]:
        """Traces come again."""
        for _ in range(40):
            if deployment.count_traces() > self._before:
                return []
            await asyncio.sleep(0.25)
        return ["no traces came after the collector was back"]


class CertificateRenewed(Fault):
    """The certificate of ``gateway-1`` is renewed."""

    def __init__(self) -> None:
        super().__init__(
            "certificate",
            "the certificate of a gateway is renewed",
            touches={},
            recovery_s={GATEWAY_1: RECOVERY_S},
        )

    async def inject(self, deployment: Deployment) -> None:
        """Replace certificate and key, one after the other."""
        deployment.renew_certificate()

    async def check(self, deployment: Deployment) -> list[str]:
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
    faults: list[Fault] = [Nothing()]
    faults += [
        ModelSignal(model, number) for model in list_models() for number in (signal.SIGKILL, signal.SIGSTOP)
    ]
    faults += [
        ServerSignal(signal.SIGKILL),
        ServerSignal(signal.SIGSTOP),
        GatewayKilled(),
        DiskFull(),
        DiskFull(kills="espeak"),
        SharedMemoryFull(),
        LinkFault("cut-server", "the network of a server is cut", _LASTING_S, Node.cut, Node.mend),
        LinkFault(
            "reset-connections",
            "all connections of a server are reset",
            _RESET_S,
            lambda node: node.reset(on=True),
            lambda node: node.reset(on=False),
        ),
        PacketsLost(),
        RedisAway(),
        CollectorAway(),
        CertificateRenewed(),
    ]
    return {fault.name: fault for fault in faults}
