"""Heads and connections of clients that attack a gateway."""

import asyncio
import base64
import contextlib

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
