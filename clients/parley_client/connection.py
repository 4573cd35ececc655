"""Opening a call."""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from parley import protocol
from parley.errors import ParleyError
from parley.tls import TlsOptions
from parley_client.call import Call
from parley_client.errors import ConnectError, ServersRefusedError
from parley_client.options import Backoff, Bounds, Deadlines, Keepalive, check_start
from parley_client.server_list import ServerList
from parley_client.tools import ToolTable
from parley_client.transport import Transport, TritonTransport

DEFAULT_SERVER = "127.0.0.1:8001"
_GATEWAY = ("http://", "https://")


class connect:  # noqa: N801 - used like a function, as asyncio's own `timeout` is
    """Open a call: ``async with connect("127.0.0.1:8001") as call``.

    Entering connects and waits for the server's ``connected``; leaving hangs up and waits for
    ``closed``. The same object may be entered again: that is a new call with a new id, which
    remembers nothing of the one before.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint, or several of them: they are tried in this order. Or
            ``https://host`` of a gateway, or several of those.
        key: API key for gateways; empty: none.
        resume: Whether a call that loses its server goes on, at the next one or at the same again. None:
            yes, unless there is a ``transport``.
        agent: Name of an agent that the server defines: what is left out here comes from its definition.
            Empty: the server's own.
        system_prompt: Who the agent is; None: the server's default.
        tools: Functions (or a :class:`ToolTable`) that answer tool requests by themselves, or
            :class:`parley.protocol.Tool` definitions whose requests the application answers.
        voice: None: the synthesizer's default.
        exaggeration: Of the voice's emotion, 0 to 2; None: the synthesizer's default.
        guidance_weight: How closely the voice keeps to the text's pace, 0 to 1; None: likewise.
        phrases: Names and words that the user is likely to say.
        phrase_weight: How much they are favoured, 0 to 10.
        alternatives: Hypotheses that come with a final text, at most 16.
        output: ``text``: the agent writes its answers and does not speak them.
        output_sample_rate: Hertz: 8000, 16000, 22050, 24000 or 48000.
        vad: When sound counts as speech; None: the defaults.
        turn: When a pause ends the user's turn; None: the server's choice.
        barge_in: When speech over the agent's is an interruption; None: the defaults.
        silence: What happens while neither side speaks; None: the server's choice.
        ending: How the language model can end or transfer the call; None: it cannot.
        steps: Parts of the conversation, which begins with the first.
        decisions: Questions about the conversation, whose answers come as ``Decision``.
        sampling: Of the language model; None: the server's choice.
        collect: Values that the agent can ask the user for, and that rules read.
        facts: ``strict``: the agent says no figure, name or code that is in none of its sources.
        greeting: What the agent says first, word for word. Empty: nothing. None: the server's
            greeting, if it has one.
        test: The call is not recorded, and no webhook learns of it; not by a gateway.
        retry: How opening is repeated after a failure that may pass.
        tls: How the servers are spoken to by TLS; None: plain text.
        headers: Sent with the stream.
        transport: Makes the transport; None: gRPC.

    Raises:
        InvalidInputError: a file of ``tls`` cannot be used.
        ValueError: from the constructor; there is no server, or their names and options do not fit.
        InvalidMessageError: from the constructor; a number is out of its range.
        ConnectError: no attempt succeeded; with the code of the last refusal if a server was reached.
        ParleyError: the server refused the session for good, for example ``unknown_agent``.
    """

    def __init__(
        self,
        server: str | Sequence[str] = DEFAULT_SERVER,
        *,
        key: str = "",
        resume: bool | None = None,
        agent: str = "",
        system_prompt: str | None = None,
        tools: ToolTable | Iterable[Callable[..., Any] | protocol.Tool] = (),
        voice: str | None = None,
        exaggeration: float | None = None,
        guidance_weight: float | None = None,
        language: str = "en",
        phrases: Iterable[str] = (),
        phrase_weight: float = 1.0,
        alternatives: int = 0,
        output: Literal["audio", "text"] = "audio",
        output_sample_rate: int = 22_050,
        vad: protocol.VadOptions | None = None,
        turn: protocol.TurnOptions | None = None,
        barge_in: protocol.BargeInOptions | None = None,
        silence: protocol.SilenceOptions | None = None,
        ending: protocol.EndingOptions | None = None,
        steps: Iterable[protocol.Step] = (),
        decisions: Iterable[protocol.DecisionQuestion] = (),
        sampling: protocol.SamplingOptions | None = None,
        collect: Sequence[protocol.CollectField] = (),
        facts: Literal["off", "strict"] = "off",
        greeting: str | None = None,
        test: bool = False,
        retry: Backoff | None = None,
        deadlines: Deadlines | None = None,
        bounds: Bounds | None = None,
        keepalive: Keepalive | None = None,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        self._table, definitions = _split_tools(tools)
        self._start = protocol.Start(
            agent=agent,
            system_prompt=system_prompt,
            tools=definitions,
            voice=voice,
            exaggeration=exaggeration,
            guidance_weight=guidance_weight,
            language=language,
            phrases=list(phrases),
            phrase_weight=phrase_weight,
            alternatives=alternatives,
            output=output,
            output_sample_rate=output_sample_rate,
            vad=vad or protocol.VadOptions(),
            turn=turn or protocol.TurnOptions(),
            barge_in=barge_in or protocol.BargeInOptions(),
            silence=silence or protocol.SilenceOptions(),
            ending=ending or protocol.EndingOptions(),
            steps=list(steps),
            decisions=list(decisions),
            sampling=sampling or protocol.SamplingOptions(),
            collect=list(collect),
            facts=facts,
            greeting=greeting,
            test=test,
        )
        check_start(self._start)
        self._retry = retry or Backoff()
        self._deadlines = deadlines or Deadlines()
        self._bounds = bounds
        self._servers = [server] if isinstance(server, str) else list(server)
        if not self._servers:
            raise ValueError("there is no server to call")
        self._resumes = transport is None if resume is None else resume
        gateways = [name for name in self._servers if name.startswith(_GATEWAY)]
        if gateways and len(gateways) < len(self._servers):
            raise ValueError("servers are either gateways or Tritons, not both")
        self._are_gateways = bool(gateways) and transport is None
        self._key = key
        self._tls = tls
        if gateways and tls is not None and tls.server_name:
            raise ValueError("the certificate of a gateway names the host of its address")
        self._make_transport: Callable[[str], Transport] = lambda name: (
            transport()
            if transport is not None
            else TritonTransport(name, keepalive=keepalive, tls=tls, headers=headers)
        )
        self._open: tuple[Call, ServerList] | None = None
        self._retry_after_s = 0.0
        """When the first of the servers that were tried may be asked again (seconds from then)."""

    async def __aenter__(self) -> Call:
        if self._open is not None:
            raise RuntimeError("this connection is in use; leave it before entering it again")
        waits = self._retry.waits(random.Random())
        while True:
            try:
                self._open = await self._attempt()
            except ParleyError as error:
                if not error.retryable:
                    raise
                wait = next(waits, None)
                if wait is None and isinstance(error, ConnectError):
                    raise
                if wait is None:
                    raise ServersRefusedError(self._servers, error) from error
                await asyncio.sleep(self._retry.at_least(wait, self._retry_after_s))
            else:
                return self._open[0]

    async def _attempt(self) -> tuple[Call, ServerList]:
        """Try every server once, until one takes the call.

        Raises:
            ParleyError: none does; the last refusal, which says more than that others are not reached.
        """
        self._retry_after_s = math.inf
        failure: ParleyError | None = None
        for index in range(len(self._servers)):
            try:
                return await self._attempt_at(index)
            except ParleyError as error:
                self._retry_after_s = min(self._retry_after_s, error.retry_after_s or 0.0)
                if not error.retryable:
                    raise
                if failure is None or error.code != ConnectError.code or failure.code == ConnectError.code:
                    failure = error
        assert failure is not None, "there is at least one server"
        raise failure

    def _list_servers(self) -> ServerList:
        if not self._are_gateways:
            return ServerList(self._servers, self._make_transport)
        from parley_client.gateway_transport import list_gateways  # noqa: PLC0415 - an optional extra

        tls = None if self._tls is None else self._tls.context()
        return list_gateways(self._servers, self._key, tls=tls)

    async def _attempt_at(self, index: int) -> tuple[Call, ServerList]:
        servers = self._list_servers()
        call = None
        try:
            call_id = str(uuid.uuid4())
            stream = await servers.open(index, call_id, self._deadlines.connect_s)
            call = Call(
                stream,
                call_id,
                self._start,
                tools=self._table,
                deadlines=self._deadlines,
                bounds=self._bounds,
                reconnect=servers if self._resumes else None,
            )
            await call.open()
        except BaseException:
            if call is not None:
                await call.aclose()
            await servers.close()
            raise
        return call, servers

    async def __aexit__(self, *problem: object) -> None:
        if self._open is None:
            return
        (call, servers), self._open = self._open, None
        try:
            await call.aclose()
        finally:
            await servers.close()


def _split_tools(
    tools: ToolTable | Iterable[Callable[..., Any] | protocol.Tool],
) -> tuple[ToolTable | None, list[protocol.Tool]]:
    """The table that answers, and the definitions for the model."""
    if isinstance(tools, ToolTable):
        return tools, tools.definitions
    given = list(tools)
    definitions = [tool for tool in given if isinstance(tool, protocol.Tool)]
    functions = [tool for tool in given if not isinstance(tool, protocol.Tool)]
    if definitions and functions:
        raise TypeError("tools are either functions or definitions, not both")
    if definitions:
        return None, definitions
    table = ToolTable(functions)
    return table, table.definitions
