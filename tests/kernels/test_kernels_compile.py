"""The compiler makes machine code of the kernels for four compute capabilities, without a GPU."""

import os
import subprocess
import sys

# The interpreter accepts what the compiler refuses. In its own process, because a kernel is for one of both.
PROGRAM = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from parley_torch.asr.topk_triton import _kernel

OTHERS = {"values": "*fp32", "ids": "*i64", "classes": "i32", "scores_stride": "i32", "bonus_stride": "i32"}
for capability in (75, 80, 89, 90):
    for kind in ("*fp32", "*fp16", "*bf16"):
        for k, block, has_bonus in ((1, 256, False), (4, 2048, True)):
            constants = {"k": k, "block": block, "has_bonus": has_bonus}
            types = {"scores": kind, "bonus": kind, **OTHERS, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(_kernel, types, constants)
            print(capability, len(compile(source, GPUTarget("cuda", capability, 32)).asm["cubin"]))
"""


def test_the_compiler_accepts_the_kernel():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    sizes = [int(line.split()[1]) for line in ran.stdout.splitlines()]
    assert len(sizes) == 24
    assert min(sizes) > 1_000
