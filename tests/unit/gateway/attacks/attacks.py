"""Attacks on a gateway; each takes the gateway, a random generator, and a count."""

import asyncio
import base64
import contextlib
import copy
import json
import os

from attacked_gateway import corpus
from fuzz_messages import BODIES, FORM, SDP, TEMPLATES
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, WebSocketException

APIS = {
    "sessions": ("/v1/sessions/{session}/stream", ["parley.v1"]),
    "realtime": ("/v1/realtime?model=parley", ["realtime"]),
    "transcription": ("/v1/realtime?intent=transcription", ["realtime"]),
    "listen": ("/v1/listen?encoding=linear16&sample_rate=16000&interim_results=true", None),
    "speak": ("/v1/speak?encoding=linear16&sample_rate=24000", None),
}
ODD = [
    None, True, -1, 2**63, 10**400, 1e308, "", "\x00", "\u202e", "\u2028", "\ud800", "x" * 100_000, [], {},
    [[]] * 1_000, {"type": "x"}, "eyJ" * 30_000, "*" * 50_000, "`" * 50_000, "." * 50_000, "[" * 50_000,
    "1-" * 30_000, "http://" * 10_000, " " * 50_000, "a.a." * 20_000, "$" + "1," * 30_000,
]  # fmt: skip
KINDS = [
    "application/json", "application/sdp", "audio/wav", "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x", "multipart/form-data; boundary=" + "x" * 5_000, "multipart/form-data",
    "multipart/form-data; " + "a=" * 4_000, "text/plain; charset=" + "x" * 5_000, "",
]  # fmt: skip
CRLF = b"\r\n"
_PUMPS = [
    b"eyJ", b"eyJa.", b"parley_a", b"token ", b"%1b[2J", b"%e2%80%a8", b"%0a", b"../", b"/", b"%",
]  # fmt: skip
_HEADERS = [
    b"X-Forwarded-For", b"Authorization", b"Sec-WebSocket-Protocol", b"Origin", b"Cookie", b"Content-Type",
    b"Content-Length", b"Accept-Language", b"Range", b"Host", b"Expect",
]  # fmt: skip
_VALUES = [
    b"," * 15_000, b"1.2.3.4, " * 1_500, b"eyJ" * 5_000, b"Bearer " + b"a." * 7_000, b"[" * 10_000,
    b'"' * 10_000, b"token, " * 2_000, b"a=b;" * 3_000, b"-1", b"9" * 5_000,
]  # fmt: skip


def _places(value, path=()):
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _places(inner, (*path, key))


def message(rng, templates):
    """A message of a client, with an odd value or with odd bytes."""
    template = rng.choice(templates)
    if rng.random() < 0.6:
        template = copy.deepcopy(template)
        holder = template
        *steps, last = rng.choice(list(_places(template)))
        for step in steps:
            holder = holder[step]
        holder[last] = rng.choice(ODD)
    raw = bytearray(json.dumps(template).encode())
    for _ in range(rng.choice([0, 0, 0, 1, 5])):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.choice([len(raw)] * 9 + [rng.randrange(len(raw))])])


# --- messages ---------------------------------------------------------------------------------


async def post_bodies(gateway, rng, count):
    """Bodies for every path, with every type."""
    for _ in range(count):
        path = rng.choice(list(BODIES))
        odd = [SDP.encode(), FORM.encode(), rng.randbytes(300)]
        body = rng.choice([message(rng, BODIES[path])] * 5 + odd)
        kind = rng.choice(KINDS) if rng.random() < 0.5 else KINDS[0]
        await gateway.post(f"POST {path}", path, body, kind)


async def send_messages(gateway, rng, count):
    """Messages to the WebSockets of every API, on a new connection after each that ends."""
    while count > 0:
        api = rng.choice(list(APIS))
        path, subprotocols = APIS[api]
        if "{session}" in path:
            raw = await gateway.post("new session", "/v1/sessions", b"{}", KINDS[0])
            if b" 201 " not in raw[:20]:
                count -= 1
                continue
            path = path.format(session=json.loads(raw.partition(CRLF * 2)[2])["session_id"])
        count -= await _talk(gateway, rng, api, f"ws://{gateway.host}:{gateway.port}{path}", subprotocols)


async def _talk(gateway, rng, api, url, subprotocols):
    sent = 1
    try:
        async with connect(url, subprotocols=subprotocols, compression=None, max_size=None) as socket:
            reading = asyncio.create_task(_read(socket))
            with contextlib.suppress(WebSocketException, OSError, TimeoutError):
                async with asyncio.timeout(30):
                    for _ in range(40):
                        raw = message(rng, TEMPLATES[api])
                        with contextlib.suppress(UnicodeDecodeError):
                            raw = raw.decode() if rng.random() < 0.9 else raw
                        await socket.send(raw)
                        sent += 1
                        await asyncio.sleep(0)
            await socket.close()
            await reading
        if socket.close_code == 1011:
            gateway.faults.append(f"{api}: closed with 1011 {socket.close_reason}")
    except InvalidHandshake as error:
        response = getattr(error, "response", None)
        status, body = getattr(response, "status_code", 400), getattr(response, "body", b"")
        gateway.judge(f"{api}: handshake", status, body)
    except (WebSocketException, OSError, TimeoutError):
        gateway.statuses["dropped"] += 1
    return sent


async def _read(socket):
    with contextlib.suppress(WebSocketException):
        async for _ in socket:
            pass


# --- heads ------------------------------------------------------------------------------------


def heads():
    """Heads that are too large, ambiguous, broken, or costly to parse."""
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        + base64.b64encode(bytes(16))
        + CRLF
    )
    for pump in _PUMPS:
        for size in (1_000, 15_000, 120_000):
            path = (pump * (size // len(pump))).replace(b" ", b"+")
            yield b"GET /v1/sessions/" + path + b"/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
            yield b"GET /?" + path + b"=1&token=" + pump.strip() + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for name in _HEADERS:
        for value in _VALUES:
            yield start + name + b": " + value + b"\r\nConnection: close\r\n\r\n"
            yield start.replace(b"/healthz", b"/v1/realtime") + upgrade + name + b": " + value + CRLF * 2
    yield start + b"".join(b"X-%d: 1\r\n" % number for number in range(1_200)) + CRLF
    yield start + b"X: a\r\n" + b" folded\r\n" * 1_500 + CRLF
    yield start + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    yield start + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    yield start + b"Transfer-Encoding: gzip\r\n\r\n"
    yield start + b"X-Null: \x00\r\n\r\n"
    yield start.replace(b"1.1", b"9.9") + CRLF
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield CRLF * 50_000
    yield start + upgrade + CRLF + b"\xff" * 1_000
    chunked = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    broken = (
        b"x\r\n",
        b"5\r\nabcdefgh",
        b"5;" + b"e" * 100_000,
        b"0" * 100_000,
        b"-1\r\n",
        b"f" * 16 + b"\r\na",
    )
    for tail in broken:
        yield chunked + tail
    yield start + CRLF + start * 3 + b"X: " + b"a" * 200_000


async def send_heads(gateway, rng, count):
    """A sample of all heads."""
    every = list(heads())
    for head in rng.sample(every, count) if count < len(every) else rng.choices(every, k=count):
        await send_head(gateway, rng, head)


async def send_head(gateway, rng, head):
    """A head in one piece, in two, or behind another request."""
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    cut = rng.randrange(1, len(head))
    pieces = rng.choice([[head], [head[:cut], head[cut:]], [first + head]])
    await gateway.send(f"head {head[:60]!r}", *pieces, wait_s=0.5)


# --- connections ------------------------------------------------------------------------------


async def hold_partial_requests(gateway, rng, count):
    """Heads and bodies that never end."""
    begun = [
        b"G",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    ]
    slow = [rng.choice(begun) for _ in range(count)]
    await asyncio.gather(*(gateway.send("slow", piece, b"a", wait_s=2.0, pause_s=0.3) for piece in slow))


async def flood(gateway, rng, count):
    """Connections on which nothing is asked, and connections that are dropped at once."""
    held = []
    for _ in range(count):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                _, writer = await asyncio.open_connection(gateway.host, gateway.port)
            held.append(writer)
            if rng.random() < 0.2:
                held.pop(rng.randrange(len(held))).transport.abort()
    await asyncio.sleep(0.5)
    for writer in held:
        writer.transport.abort()


# --- contributed ------------------------------------------------------------------------------


async def upload_media(gateway, rng, count):
    """Every file of the media corpus, to both APIs that take recordings."""
    del rng, count
    for attack in corpus("media", "media_corpus"):
        disposition = f'name="file"; filename="{attack.filename}"\r\nContent-Type: {attack.content_type}'
        form = (
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
            + f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()
            + attack.body
            + b"\r\n--x--\r\n"
        )
        await gateway.post(attack.name, "/v1/audio/transcriptions", form, "multipart/form-data; boundary=x")
        await gateway.post(attack.name, "/v1/listen", attack.body, attack.content_type)


async def send_offers(gateway, rng, count):
    """Every offer of the WebRTC corpus, and the usual one with parts that are odd."""
    offers = [attack.sdp for attack in corpus("webrtc", "offer_corpus")]
    lines = SDP.split("\r\n")
    for _ in range(count):
        odd = list(lines)
        odd[rng.randrange(len(odd))] = rng.choice([str(one)[:60_000] for one in ODD])
        offers.append("\r\n".join(odd))
    for number, offer in enumerate(offers):
        body = offer.encode("utf-8", "replace")
        await gateway.post(f"offer {number}", "/v1/realtime/calls", body, "application/sdp")


SHARES = {
    send_messages: 0.55,
    post_bodies: 0.25,
    send_heads: 0.15,
    send_offers: 0.01,
    hold_partial_requests: 0.02,
    flood: 0.02,
}
"""Which part of all messages each attack sends."""
AT_ONCE = int(os.environ.get("PARLEY_ATTACKERS", "4"))
