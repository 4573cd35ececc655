"""NVML of a machine with some GPUs."""

from __future__ import annotations

from types import SimpleNamespace

GIB = 1 << 30


class FakeNvml:
    """NVML's functions under its own names.

    Args:
        sizes: memory of each GPU (GiB).
        capabilities: of each GPU; None: it cannot be read.
        divided: numbers of the GPUs with slices; without any no GPU can have them.
        driver: version of the driver.
        cuda: of CUDA's own library; None: it is not found.
    """

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, sizes=(), capabilities=(), *, divided=(), driver="580.65", cuda=None):
        self._sizes = sizes or [80] * len(capabilities)
        self._capabilities = capabilities or [(9, 0)] * len(sizes)
        self._divided = divided
        self._driver = driver
        self._cuda = cuda

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802 - NVML's name
        if self._cuda is None:
            raise self.NVMLError("library not found")
        return self._cuda

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self._driver

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self._sizes)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index >= len(self._sizes):
            raise self.NVMLError("invalid argument")
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle}d1f2a3b"

    def nvmlDeviceGetCudaComputeCapability(self, handle):  # noqa: N802
        if self._capabilities[handle] is None:
            raise self.NVMLError("lost")
        return list(self._capabilities[handle])

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle == 0 and not self._divided:
            raise self.NVMLError("not supported")
        return [int(handle in self._divided), 0]

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=int(self._sizes[handle] * GIB))

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return f"GPU {handle}"
