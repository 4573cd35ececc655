"""A Prometheus in a node, which watches gateways and servers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from harness.network import NetworkError, Node
from harness.servers import Program
from observe import ALERTS, find_program

from parley.errors import ParleyError

_PORT = 9090
_READY_S = 60.0
_QUERY_S = 10.0


class Prometheus:
    """Scrapes every second.

    Args:
        node: Where it runs.
        folder: For its data and its log.
        workers: Addresses of the servers' metrics; of later ones, too.
        gateways: … and of the gateways'.

    Raises:
        NetworkError: there is no Prometheus.
    """

    def __init__(self, node: Node, folder: Path, workers: Sequence[str], gateways: Sequence[str]) -> None:
        try:
            self._path = find_program("prometheus")
        except FileNotFoundError as error:
            raise NetworkError(str(error)) from error
        self.node = node
        self.address = f"{node.address}:{_PORT}"
        self._folder = folder / node.name
        self._folder.mkdir()
        self._program = Program(node, node.name, folder)
        self._targets = len(workers) + len(gateways)
        targets = {"parley": list(workers), "parley-gateway": list(gateways)}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "5s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": addresses}]}
                for name, addresses in targets.items()
            ],
        }
        (self._folder / "prometheus.yaml").write_text(json.dumps(config))

    async def start(self) -> None:
        """Start it, and wait until it watches everything.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        await self._program.start(
            [
                self._path,
                f"--config.file={self._folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            self._watches,
            ready_s=_READY_S,
        )

    def _watches(self) -> bool:
        """Whether it has tried to read every page once."""
        url = f"http://{self.address}/api/v1/query"
        try:
            answer = httpx.get(url, params={"query": "up"}, timeout=_QUERY_S, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.is_success and len(answer.json()["data"]["result"]) == self._targets

    async def query(self, expression: str) -> dict[str, float]:
        """The value of each series of an expression now, by its labels as ``name=value,…``.

        Raises:
            ParleyError: there is no answer, or Prometheus refuses the expression.
        """
        series = await self._ask("query", {"query": expression})
        return {_key(one["metric"]): float(one["value"][1]) for one in series}

    async def value(self, expression: str) -> float:
        """The value of an expression with one series at most; NaN: with none.

        Raises:
            ParleyError: as :meth:`query`, or it has several.
        """
        found = list((await self.query(expression)).values())
        if len(found) > 1:
            raise ParleyError(f"{expression} has {len(found)} series")
        return found[0] if found else math.nan

    async def history(self, expression: str, since: float) -> list[tuple[float, float]]:
        """What an expression with one series has been, each second: seconds of ``time.time``, and values.

        Args:
            expression: In Prometheus' language.
            since: Its beginning (seconds of ``time.time``).

        Raises:
            ParleyError: as :meth:`value`.
        """
        times = {"start": since, "end": time.time(), "step": 1}
        series = await self._ask("query_range", {"query": expression, **times})
        if len(series) > 1:
            raise ParleyError(f"{expression} has {len(series)} series")
        return [(float(at), float(value)) for one in series for at, value in one["values"]]

    async def _ask(self, what: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        url = f"http://{self.address}/api/v1/{what}"
        try:
            async with httpx.AsyncClient(timeout=_QUERY_S, trust_env=False) as client:
                answer = await client.get(url, params=parameters)
        except httpx.HTTPError as error:
            raise ParleyError(f"Prometheus does not answer: {error!r}") from error
        if not answer.is_success:
            raise ParleyError(f"Prometheus refuses {parameters['query']}: {answer.text[:300]}")
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found


def _key(labels: dict[str, str]) -> str:
    shown = {name: value for name, value in labels.items() if name != "__name__"}
    return ",".join(f"{name}={value}" for name, value in sorted(shown.items()))
