"""Where recordings lie on their way, and how many there may be."""

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from starlette.datastructures import Headers

from parley_gateway.errors import GatewaySettingsError, UploadsFullError
from parley_gateway.metrics import Metrics
from parley_gateway.spool import Spool, UploadSettings


@pytest.fixture
def spool(tmp_path):
    return Spool(UploadSettings(folder=str(tmp_path), disk_bytes=1_000_000), Metrics().uploads)


def open_files(folder):
    """Descriptors of this process that lie in a folder, with or without a name."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was that of the listing
            found.append(str(one.readlink()))
    return [target for target in found if target.startswith(str(folder))]


async def test_bytes_are_kept_in_a_file_without_a_name(spool, tmp_path):
    noted = []
    with spool.open() as file:
        for _ in range(3):
            await file.append(b"abcd" * 50_000, noted.append)
        await file.finish(noted.append)
        assert (file.size, file.head) == (600_000, b"abcd" * 4)
        assert b"".join(noted) == b"abcd" * 150_000
        assert os.fstat(file.descriptor).st_size == 600_000
        assert list(tmp_path.iterdir()) == []
        assert spool.reserved == 600_000
        assert len(open_files(tmp_path)) == 1
    assert spool.reserved == 0
    assert open_files(tmp_path) == []


async def test_all_recordings_share_one_budget(spool):
    with spool.open() as one, spool.open() as other:
        await one.append(bytes(600_000))
        with pytest.raises(UploadsFullError) as caught:
            await other.append(bytes(600_000))
        assert (caught.value.status, caught.value.retryable) == (503, True)
        assert caught.value.retry_after_s
    with spool.open() as one:
        await one.append(bytes(900_000))


async def test_owner_cannot_take_the_whole_budget(spool):
    with spool.open("one") as theirs, spool.open("one") as more, spool.open("other") as other:
        await theirs.append(bytes(700_000))
        with pytest.raises(UploadsFullError):
            await more.append(bytes(100_000))
        with pytest.raises(UploadsFullError):
            spool.check_announced(Headers({"content-length": "100000"}), "one")
        await other.append(bytes(200_000))
    with spool.open("one") as again:  # given back
        await again.append(bytes(700_000))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_full_disk_is_reported_without_leftovers(spool, tmp_path, monkeypatch, code):
    def write(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", write)
    with spool.open() as file:
        with pytest.raises(UploadsFullError):
            await file.append(bytes(300_000))
        with pytest.raises(UploadsFullError):
            await file.append(bytes(300_000))
    assert spool.reserved == 0
    assert open_files(tmp_path) == []


async def test_a_thread_that_still_writes_keeps_its_file_open(spool, tmp_path, monkeypatch):
    loop, writes = asyncio.get_running_loop(), os.pwrite
    begun, may_write = asyncio.Event(), asyncio.Event()

    def write(*arguments):
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_write.wait(), loop).result()
        return writes(*arguments)

    monkeypatch.setattr(os, "pwrite", write)

    async def send():
        with spool.open() as file:
            await file.append(bytes(300_000))

    sending = asyncio.create_task(send())
    await begun.wait()
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
    assert (spool.reserved, len(open_files(tmp_path))) == (300_000, 1)
    may_write.set()
    async with asyncio.timeout(5):
        while spool.reserved:  # noqa: ASYNC110 - a thread's end
            await asyncio.sleep(0.001)
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("folder", ["/nonexistent", "/proc"])
def test_unusable_folder_is_reported(folder):
    spool = Spool(UploadSettings(folder=folder), Metrics().uploads)
    with pytest.raises(GatewaySettingsError, match=r"uploads\.folder"):
        spool.prepare()


async def test_memory_for_what_is_sent_is_waited_for(tmp_path):
    settings = UploadSettings(folder=str(tmp_path), memory_bytes=1_000, wait_s=0.05)
    spool = Spool(settings, Metrics().uploads)
    with spool.open() as file:
        await file.append(np.arange(100, dtype="<i2").tobytes())
        await file.finish()
        async with spool.samples_of(file) as samples:
            assert samples.tolist() == list(range(100))
            with pytest.raises(UploadsFullError):
                async with spool.samples_of(file):
                    pass
            with pytest.raises(UploadsFullError):
                async with spool.bytes_of(file):
                    pass
        async with spool.samples_of(file):  # given back
            pass
        async with spool.bytes_of(file) as recording:
            assert len(recording) == 200
            with pytest.raises(UploadsFullError):
                async with spool.samples_of(file):
                    pass


async def test_a_recording_beyond_all_memory_is_sent_alone(tmp_path):
    spool = Spool(UploadSettings(folder=str(tmp_path), memory_bytes=10), Metrics().uploads)
    with spool.open() as file:
        await file.append(bytes(1_000))
        await file.finish()
        async with spool.samples_of(file) as samples:
            assert len(samples) == 500
