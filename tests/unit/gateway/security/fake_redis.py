"""Redis as far as rates need it: a real one if this machine has it, and one that speaks its protocol.

The second knows the few commands that ``limits`` sends; its two scripts are recognised by their hashes.
"""

import asyncio
import contextlib
import hashlib
import time

from limits.aio.storage.redis.bridge import RedisBridge


def sha1(script):
    return hashlib.sha1(script).hexdigest()  # noqa: S324 - Redis names scripts so


ACQUIRE = sha1(RedisBridge.SCRIPT_ACQUIRE_SLIDING_WINDOW)
LOOK = sha1(RedisBridge.SCRIPT_SLIDING_WINDOW)


class Switchable:
    """A server that tests stop and start; a call returns its time."""

    now = 0.0
    silent = False
    port = 0

    def __call__(self):
        return self.now

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()


class FakeRedis(Switchable):
    def __init__(self):
        self._values = {}
        self._clients = set()

    async def start(self):
        self._values.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        self._server.close()
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self._clients.add(asyncio.current_task())
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    count = int((await reader.readuntil(b"\r\n"))[1:])
                    words = []
                    for _ in range(count):
                        size = int((await reader.readuntil(b"\r\n"))[1:])
                        words.append((await reader.readexactly(size + 2))[:-2])
                    if not self.silent:
                        writer.write(encode(self._answer(words)))
                        await writer.drain()
        except asyncio.CancelledError:
            pass
        finally:
            self._clients.discard(asyncio.current_task())
            writer.close()

    def _answer(self, words):  # noqa: PLR0911 - one per command
        match [words[0].upper(), *(word.decode() for word in words[1:])]:
            case [b"HELLO", *_]:
                return {b"server": b"redis", b"version": b"7.0.15", b"proto": 3, b"id": 1}
            case [b"CLIENT" | b"SELECT" | b"PING", *_]:
                return True
            case [b"EVALSHA", name, _, previous, current, limit, expiry, amount] if name == ACQUIRE:
                return self._acquire(previous, current, int(limit), int(expiry) * 1000, int(amount))
            case [b"EVALSHA", name, _, previous, current, expiry] if name == LOOK:
                return self._look(previous, current, int(expiry) * 1000)
            case [b"INCRBY", key, amount]:
                count = int(self._get(key) or 0) + int(amount)
                self._values[key] = count, self._values.get(key, (0, float("inf")))[1]
                return count
            case [b"EXPIRE", key, seconds]:
                self._values[key] = self._values[key][0], time.monotonic() + int(seconds)
                return 1
            case other:
                return ValueError(f"ERR unknown command {other}")

    def _get(self, key):
        value, expiry = self._values.get(key, (None, 0.0))
        return value if expiry > time.monotonic() else None

    def _ttl(self, key):
        return -2 if self._get(key) is None else int((self._values[key][1] - time.monotonic()) * 1000)

    def _set(self, key, value, ttl_ms):
        self._values[key] = value, time.monotonic() + ttl_ms / 1000

    def _look(self, previous, current, expiry):
        ttl = self._ttl(current)
        if 0 < ttl < expiry:
            self._values[previous] = self._values.pop(current)
            self._set(current, 0, ttl + expiry)
        counts = (None if (value := self._get(key)) is None else b"%d" % value for key in (previous, current))
        return [
            part
            for key, count in zip((previous, current), counts, strict=True)
            for part in (count, self._ttl(key))
        ]

    def _acquire(self, previous, current, limit, expiry, amount):
        before, ttl, count, _ = (int(part or 0) for part in self._look(previous, current, expiry))
        if before * max(0, ttl) // expiry + count + amount > limit:
            return None
        if self._get(current) is None:
            self._set(current, amount, 2 * expiry)
        else:
            self._values[current] = count + amount, self._values[current][1]
        return 1


class RealRedis(Switchable):
    def __init__(self, program, port):
        self._program = program
        self.port = port

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            self._program, "--port", str(self.port), "--save", "", "--bind", "127.0.0.1",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(10):
            while b"Ready to accept" not in await self._process.stdout.readline():
                assert self._process.returncode is None

    async def stop(self):
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


def encode(value):  # noqa: PLR0911 - one per type
    """RESP3."""
    match value:
        case True:
            return b"+OK\r\n"
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(encode, value))
        case dict():
            return b"%%%d\r\n" % len(value) + b"".join(
                encode(part) for pair in value.items() for part in pair
            )
        case ValueError():
            return f"-{value}\r\n".encode()
