"""Which versions are refused, and what the errors say."""

import pytest
from fake_nvml import FakeNvml

from parley.errors import UnsupportedVersionError
from parley.runtime import versions
from parley.runtime.versions import (
    check_gpus,
    check_onnx_runtime,
    check_torch,
    check_triton,
    check_vllm,
    installed_version,
    parse_version,
)


@pytest.fixture
def install(monkeypatch):
    """Let these packages be installed, and no others."""

    def pretend(**packages):
        found = {name.replace("_", "-"): version for name, version in packages.items()}
        monkeypatch.setattr(
            versions,
            "installed_version",
            lambda *names: next((found[name] for name in names if name in found), None),
        )

    return pretend


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.32.0", (0, 32, 0)), ("2.15.0a0+nv26.10", (2, 15, 0)), ("580", (580,)), ("0.33.1rc1", (0, 33, 1))],
)
def test_a_version_is_the_numbers_that_it_begins_with(text, numbers):
    assert parse_version(text) == numbers


def test_invalid_version_is_an_error():
    with pytest.raises(ValueError, match="'dev' is not a version"):
        parse_version("dev")


def test_the_installed_vllm_is_accepted():
    check_vllm({})
    assert installed_version("no-such-package") is None


@pytest.mark.parametrize("version", ["0.31.0", "0.31.0+nv26.10", "0.32.0", "0.33.0", "0.33.2"])
def test_these_vllms_are_accepted(install, version):
    install(vllm=version)
    check_vllm({})


@pytest.mark.parametrize("version", ["0.20.2", "0.30.9", "0.34.0", "1.0.0"])
def test_other_vllms_are_refused_with_what_is_there_and_what_is_needed(install, version):
    install(vllm=version)
    with pytest.raises(UnsupportedVersionError) as caught:
        check_vllm({})
    assert str(caught.value) == (
        f"vLLM is {version}; 0.31.0 to 0.33.0 are accepted: private interfaces are used. "
        "PARLEY_ANY_VERSION=true tries it all the same (docs/gpu.md#versions)"
    )


def test_an_operator_can_try_any_version(install, caplog):
    install(vllm="0.34.0")
    check_vllm({"PARLEY_ANY_VERSION": "true"})
    assert "vLLM is 0.34.0" in caplog.text


def test_without_a_package_what_can_be_imported_is_tried(install, monkeypatch, caplog):
    install()
    check_vllm({})
    assert "vLLM's version is unknown" in caplog.text
    monkeypatch.setattr(versions, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedVersionError, match="vLLM is not installed"):
        check_vllm({"PARLEY_ANY_VERSION": "true"})


def test_an_old_pytorch_is_refused(install):
    install(torch="2.10.1+cu130")
    with pytest.raises(
        UnsupportedVersionError, match=r"PyTorch is 2\.10\.1\+cu130; 2\.11 or later is needed"
    ):
        check_torch({})
    install(torch="2.15.0a0+nv26.10")
    check_torch({})


def test_both_builds_of_onnx_runtime_are_refused(install):
    install(onnxruntime="1.31.1", onnxruntime_gpu="1.31.1")
    with pytest.raises(UnsupportedVersionError, match=r"beside onnxruntime-gpu 1\.31\.1; remove both"):
        check_onnx_runtime({})
    install(onnxruntime_gpu="1.27.0")
    with pytest.raises(UnsupportedVersionError, match=r"onnxruntime-gpu is 1\.27\.0; 1\.28 or later"):
        check_onnx_runtime({})
    install(onnxruntime_gpu="1.31.1")
    check_onnx_runtime({})


def test_a_driver_and_a_gpu_of_today_are_accepted():
    check_gpus(0, {}, FakeNvml(capabilities=[(9, 0)], driver="580.159.04"))
    check_gpus(0, {}, FakeNvml(capabilities=[(7, 5)], driver=b"615.61"))
    check_gpus(0, {}, FakeNvml())


def test_an_old_driver_or_gpu_is_refused():
    with pytest.raises(UnsupportedVersionError, match=r"driver is 575\.51\.03; 580 or later"):
        check_gpus(0, {}, FakeNvml(capabilities=[(9, 0)], driver="575.51.03"))
    with pytest.raises(
        UnsupportedVersionError, match=r"compute capability of GPU 0 is 7\.0; CUDA 13 needs 7\.5"
    ):
        check_gpus(0, {}, FakeNvml(capabilities=[(7, 0)]))


@pytest.mark.parametrize(
    ("device", "visible"),
    [(0, "1"), (1, "2,1"), (1, None), (0, "GPU-1"), (0, "GPU-1d"), (0, " 1 ")],
)
def test_the_gpu_that_is_used_counts(device, visible):
    """And no better one of the same machine, which is used for something else."""
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    nvml = FakeNvml(capabilities=[(9, 0), (6, 1), (8, 0)])
    with pytest.raises(UnsupportedVersionError, match=rf"compute capability of GPU {device} is 6\.1"):
        check_gpus(device, environment, nvml)


@pytest.mark.parametrize(
    ("device", "visible"),
    [
        (0, "0"),
        (0, "2,1"),
        (3, None),
        (1, "0"),
        (1, "0,-1,1"),
        (1, "7,1"),
        (0, ""),
        (0, "GPU-"),
        (0, "MIG-1d"),
    ],
)
def test_a_gpu_that_nvml_does_not_find_is_left_to_cuda(device, visible):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    check_gpus(device, environment, FakeNvml(capabilities=[(9, 0), (6, 1), (8, 0)]))


def test_an_old_driver_with_the_library_of_a_newer_one_is_accepted():
    check_gpus(0, {}, FakeNvml(capabilities=[(9, 0)], driver="570.172.08", cuda=13_000))
    with pytest.raises(UnsupportedVersionError, match=r"driver is 570\.172\.08"):
        check_gpus(0, {}, FakeNvml(capabilities=[(9, 0)], driver="570.172.08", cuda=12_080))


def test_failure_of_nvml_is_only_logged(monkeypatch, caplog):
    check_gpus(0, {}, FakeNvml(capabilities=[None]))
    assert "could not be read: lost" in caplog.text
    monkeypatch.setattr(versions, "open_nvml", lambda: None)
    check_gpus(0, {})


def test_an_old_triton_is_refused_with_the_reason():
    with pytest.raises(UnsupportedVersionError) as caught:
        check_triton("2.71.0", "2.51.0", {})
    assert "Triton is 2.51.0; 2.71.0 or later is needed: older ones may deadlock" in str(caught.value)
    assert caught.value.code == "unsupported_version"
    check_triton("2.71.0", "2.75.0", {})
    check_triton("2.71.0", "2.51.0", {"PARLEY_ANY_VERSION": "true"})
