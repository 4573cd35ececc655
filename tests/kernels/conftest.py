"""Kernels run on the GPU, and where there is none in the interpreter of the Triton compiler."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
