"""Network namespaces as nodes: each has an address of its own, and a cable that can be pulled or be bad.

::

    with Network() as network:
        node = network.add("worker-1")
        process = node.start(["scripts/serve", "--grpc-address", node.address])
        node.cut()
        node.mend()
        node.lose(5.0)

It needs root, iproute2's ``ip``, and nftables' ``nft`` where packets are lost. Nothing of it survives the
``with`` block; what a process left that was killed is removed by the next one.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self

from parley.errors import ParleyError

_PREFIX = "parley"
_SUBNET = "10.78.{}.{}"
_MOST_NODES = 200
_NAMESPACES = Path("/run/netns")
_INTERFACES = Path("/sys/class/net")
_KILL_S = 5.0
_INSIDE = "parley"
"""The table of rules in a node's namespace."""
_PARTS = 1000
"""Loss is a number of packets in so many."""


class NetworkError(ParleyError):
    """The network cannot be made here."""

    code = "no_network"


class Host(ABC):
    """Where programs run: a node of a network, or this machine.

    Args:
        name: For people.
        address: IPv4, at which its programs listen.
        ports_are_free: Whether they have all ports to themselves; if not, they listen on any free ones.
        prefix: Begins every command.
    """

    def __init__(self, name: str, address: str, *, ports_are_free: bool, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.address = address
        self.ports_are_free = ports_are_free
        self._prefix = prefix
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str | Path],
        *,
        log: IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, so that Ctrl-C ends the callers first."""
        process = subprocess.Popen(
            [*self._prefix, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self._processes.append(process)
        return process

    @abstractmethod
    def kill(self) -> None:
        """End all of its programs at once."""


class Node(Host):
    """One namespace, and the processes in it, which end with it."""

    def __init__(self, name: str, namespace: str, cable: str, address: str, table: str) -> None:
        super().__init__(name, address, ports_are_free=True, prefix=("ip", "netns", "exec", namespace))
        self.namespace = namespace
        self._cable = cable
        self._table = table
        self._loss_percent = 0.0
        self._resets = False
        self._dropped = 0
        self._has_rules = False

    def cut(self) -> None:
        """Pull the cable: packets vanish in both directions, without an error."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Put the cable back."""
        _ip("link", "set", self._cable, "up")

    def lose(self, percent: float) -> None:
        """Lose packets by chance, in both directions.

        Raises:
            ValueError: not 0 to 100.
            NetworkError: there is no ``nft``.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} percent of the packets")
        self._loss_percent = percent
        self._apply()

    def reset(self, *, on: bool) -> None:
        """Answer every TCP packet to and from the node with a reset, which ends its connections.

        Raises:
            NetworkError: there is no ``nft``.
        """
        self._resets = on
        self._apply()

    def dropped(self) -> int:
        """Packets that :meth:`lose` has taken away since the node was made."""
        return self._dropped + self._counted()

    def _apply(self) -> None:
        """Put the rules of now in the place of those before, at once."""
        self._dropped += self._counted()
        # Where packets come in, as on a real wire: an own packet that is dropped going out is an error.
        _nft(_rules(self._table, self._cable, self._cable, self._drops()))
        inside = _rules(_INSIDE, "wire", "eth0", self._drops())
        inside += [f"add table inet {_INSIDE}", f"flush table inet {_INSIDE}"]
        for hook, way in (("input", "iifname"), ("output", "oifname")) if self._resets else ():
            inside += [
                f"add chain inet {_INSIDE} {hook} {{ type filter hook {hook} priority 0; }}",
                # The reset itself has to pass.
                f"add rule inet {_INSIDE} {hook} {way} eth0 tcp flags & rst != rst reject with tcp reset",
            ]
        _nft(inside, self.namespace)
        self._has_rules = True

    def _drops(self) -> list[str]:
        share = round(self._loss_percent * _PARTS / 100)
        chance = f"numgen random mod {_PARTS} < {share} " if share < _PARTS else ""
        return [f"{chance}counter drop"] if share else []

    def _counted(self) -> int:
        if not self._has_rules:
            return 0
        outside = _list_chain(self._table, self._cable)
        return _packets(outside) + _packets(_list_chain(_INSIDE, "wire", self.namespace))

    def kill(self) -> None:
        """End everything in the node at once (SIGKILL), children included."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_S)
        self._processes = [process for process in self._processes if process.poll() is None]

    def _pids(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]


class Network:
    """A bridge with nodes at it; this process is at it, too.

    Raises:
        NetworkError: on entering; this process may not, or ``ip`` is missing.
    """

    def __init__(self) -> None:
        # The kernel's names have at most 15 characters.
        self._bridge = f"{_PREFIX}{os.getpid()}"
        self._subnet = 0
        self._nodes: list[Node] = []
        self._count = itertools.count(2)
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        """Of this process, for the nodes."""
        return _SUBNET.format(self._subnet, 1)

    def __enter__(self) -> Self:
        """Make the bridge."""
        if os.geteuid() != 0:
            raise NetworkError("network namespaces need root")
        if shutil.which("ip") is None:
            raise NetworkError("`ip` is missing. On Debian and Ubuntu: sudo apt-get install iproute2")
        for left in _left_over():
            _remove(left)
        taken = _ip("-o", "-4", "addr", "show")
        self._subnet = next((number for number in range(1, 255) if _SUBNET.format(number, 1) not in taken), 0)
        if not self._subnet:
            raise NetworkError("every subnet is in use")
        with self._stack:
            self._stack.callback(_remove, self._bridge)
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "gso_max_segs", 1)
            _ip("link", "set", self._bridge, "up")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        """Kill what runs in the nodes, and remove them."""
        with self._stack:
            for node in self._nodes:
                node.kill()
            self._nodes.clear()

    def add(self, name: str) -> Node:
        """A new node.

        Raises:
            NetworkError: there are too many.
        """
        number = next(self._count)
        if number > _MOST_NODES:
            raise NetworkError(f"at most {_MOST_NODES} nodes")
        namespace, cable = f"{self._bridge}-{number}", f"{_cables(os.getpid())}{number}"
        address = _SUBNET.format(self._subnet, number)
        _ip("netns", "add", namespace)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", cable, "master", self._bridge, "up")
        inside = ("-n", namespace)
        _ip(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        # Packets of the size that a wire has, or 64 KiB would be lost at once.
        _ip(*inside, "link", "set", "eth0", "gso_max_segs", 1)
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        node = Node(name, namespace, cable, address, self._bridge)
        self._nodes.append(node)
        return node


def _left_over() -> set[str]:
    """Bridges of processes that are gone."""
    namespaces = {path.name.partition("-")[0] for path in _NAMESPACES.glob(f"{_PREFIX}*-*")}
    bridges = {path.name for path in _INTERFACES.glob(f"{_PREFIX}*")}
    owners = {name: name.removeprefix(_PREFIX) for name in namespaces | bridges}
    return {name for name, pid in owners.items() if pid.isdigit() and not Path("/proc", pid).exists()}


def _remove(bridge: str) -> None:
    """Remove a bridge, and the namespaces at it with their cables."""
    for path in _NAMESPACES.glob(f"{bridge}-*"):
        for pid in _ip("netns", "pids", path.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "del", path.name)
    # With its namespace a cable goes some time later, and its name would still be taken.
    for cable in _INTERFACES.glob(f"{_cables(bridge.removeprefix(_PREFIX))}*"):
        with suppress(NetworkError):  # it has just gone
            _ip("link", "del", cable.name)
    if shutil.which("nft") and f"table netdev {bridge}\n" in _nft(["list tables"]):
        _nft([f"delete table netdev {bridge}"])
    if (_INTERFACES / bridge).exists():
        _ip("link", "del", bridge)


def _cables(pid: int | str) -> str:
    """How the names of all cables of a process begin."""
    return f"pv{pid}-"


def _rules(table: str, chain: str, device: str, rules: Iterable[str]) -> list[str]:
    """Commands that make a chain, at what comes in through a device, consist of these rules."""
    hook = f"type filter hook ingress device {device} priority 0;"
    return [
        f"add table netdev {table}",
        f"add chain netdev {table} {chain} {{ {hook} }}",
        f"flush chain netdev {table} {chain}",
        *(f"add rule netdev {table} {chain} {rule}" for rule in rules),
    ]


def _packets(listed: str) -> int:
    """The sum of all counters in a list of rules, as JSON."""
    rules = [entry["rule"]["expr"] for entry in json.loads(listed)["nftables"] if "rule" in entry]
    return sum(int(part["counter"]["packets"]) for rule in rules for part in rule if "counter" in part)


def _nft(commands: Iterable[str], namespace: str = "") -> str:
    """Run commands of nftables, all or none."""
    if shutil.which("nft") is None:
        raise NetworkError("`nft` is missing. Run, as root on Debian: scripts/setup --cluster")
    return _run(["nft", "--file", "-"], namespace, "\n".join(commands) + "\n")


def _list_chain(table: str, chain: str, namespace: str = "") -> str:
    return _run(["nft", "--json", "list", "chain", "netdev", table, chain], namespace)


def _run(command: Sequence[str], namespace: str, text: str = "") -> str:
    place = ["ip", "netns", "exec", namespace] if namespace else []
    done = subprocess.run([*place, *command], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _ip(*arguments: Any) -> str:
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout
