"""A Redis that tests stop, freeze and start again."""

import asyncio
import signal


class RedisServer:
    """A process; a call returns the time that ``now`` says (s)."""

    now = 0.0

    def __init__(self, program, port):
        self._program = program
        self.port = port

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

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            self._program, "--port", str(self.port), "--save", "", "--bind", "127.0.0.1",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(10):
            while b"Ready to accept" not in await self._process.stdout.readline():
                assert self._process.returncode is None

    def freeze(self):
        """Keep connections open, and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    async def stop(self):
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()
