"""A server in a thread whose agent answers what is typed as a test says, and a model of callers."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fake_call_server import CONNECTED, Triton, acknowledgement, event, serving
from tritonclient.grpc import service_pb2

from parley import protocol


def says(text):
    """An answer of the agent."""
    return [protocol.ResponseText(turn=0, response_id="r", text=text)]


def calls(name, then, **arguments):
    """An answer that needs a tool; ``then`` makes the text of its result."""
    return [protocol.ToolRequest(turn=0, call_id="c", name=name, arguments=arguments), then]


HANGS_UP = [protocol.Closed(reason="silence")]


class ScriptedAgent(Triton):
    """Answers each typed text with the events of ``answers``, by its text; others with "I do not know"."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.starts = []
        self.refusals = []
        """Errors of the next calls, as Triton reports them."""

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        turn, then = 0, None
        async for request in requests:
            raw = request.raw_input_contents[0]
            message = protocol.decode_start(raw[4:]) if b'"start"' in raw else None
            if request.parameters["sequence_start"].bool_param and self.refusals:
                yield service_pb2.ModelStreamInferResponse(error_message=self.refusals.pop(0))
                return
            if request.parameters["sequence_start"].bool_param:
                self.starts.append(message)
                yield event(CONNECTED)
                continue
            if request.parameters["sequence_end"].bool_param:
                yield event(protocol.Closed(reason="ended"))
                yield acknowledgement(request.id)
                return
            yield acknowledgement(request.id)
            message = protocol.decode_message(raw[4:])
            if isinstance(message, protocol.Text):
                turn, events = turn + 1, self.answers.get(message.text, says("I do not know."))
                yield event(protocol.AgentState(state="processing"))
            elif isinstance(message, protocol.ToolResponse):
                events = says(then(message.output))
            else:
                continue
            for one in events:
                if callable(one):
                    then = one
                    break
                changes = {"turn": turn} if hasattr(one, "turn") else {}
                yield event(protocol.msgspec.structs.replace(one, **changes))
                if isinstance(one, protocol.Closed):
                    return
            else:
                yield event(protocol.ResponseDone(turn=turn, response_id="r", audio_ms=0))
                yield event(protocol.TurnMetrics(turn=turn))
                yield event(protocol.AgentState(state="listening"))


@contextmanager
def scripted(answers):
    """The agent, with its ``address``, in a thread with a loop of its own."""
    agent, ready, done = ScriptedAgent(answers), threading.Event(), []

    async def serve():
        stop = asyncio.Event()
        done.append((asyncio.get_running_loop(), stop))
        async with serving(agent) as (agent.address, _):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield agent
    finally:
        loop, stop = done[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join()


class _Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        text = self.server.answers.pop(0)
        chunk = json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"data: {chunk}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *_):
        pass


@contextmanager
def chat_model(*answers):
    """OpenAI's chat completions with these answers, one after the other; it has ``url`` and ``asked``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Chat)
    server.asked, server.answers = [], list(answers)
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
