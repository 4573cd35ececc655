"""int8 layers for processors without VNNI instructions. Imports vLLM: call ``prepare_environment`` first.

vLLM multiplies int8 by int8. Without VNNI oneDNN has that only as uint8 by int8 with a correction for each
weight, which it computes again in every call: more work than the product itself where there are few rows.
Here the correction is computed once. On two cores of an AMD EPYC with AVX2 a layer of 4864 by 896 takes 0.4
instead of 5.5 ms for one row, and 2.4 instead of 7.5 ms for 32.
"""

from __future__ import annotations

import functools

import torch

from parley.llm.vllm_api import (
    CPUInt8ScaledMMLinearKernel,
    PlatformEnum,
    convert_to_channelwise,
    onednn_scaled_int8_quant,
    register_linear_kernel,
)

_FEW_ROWS = 4
"""Up to here the product of bfloat16 and int8 is quicker, and needs no rounding of the inputs."""
_SHIFT = 128
"""What makes an int8 a uint8."""


class Int8LinearWithoutVnni(CPUInt8ScaledMMLinearKernel):  # type: ignore[misc]  # vLLM is untyped here
    """Weights with a scale for each output, inputs with one for each row; other schemes are vLLM's own.

    Without VNNI sums of two products are cut off at 16 bits. The weights of language models are mostly far
    from the largest: that adds 1 to 3 % of error to the 4 % of rounding inputs to int8, as in vLLM's own
    layer. The few rows of decoding have neither error.
    """

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack the weights."""
        if self.config.is_static_input_scheme or not self.config.input_symmetric:
            super().process_weights_after_loading(layer)
            return
        name, scale_name, *_ = self.layer_param_names
        weight = getattr(layer, name).data.contiguous()
        scale = getattr(layer, scale_name).data
        if not self.config.is_channelwise:
            scale = convert_to_channelwise(scale, layer.logical_widths)
        scale = scale.float().reshape(-1)
        self._weight, self._weight_scale = weight, scale.to(torch.get_default_dtype())
        self._scale = scale
        self._zero_points = torch.zeros(len(scale), dtype=torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self._correction = _SHIFT * weight.sum(dim=1, dtype=torch.float32) * scale
        setattr(layer, name, None)
        self.linear_method = self._apply

    def _apply(
        self, _layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        if len(rows) <= _FEW_ROWS:
            # PyTorch has no public name for it.
            out = torch.ops.aten._weight_int8pack_mm(rows, self._weight, self._weight_scale)  # noqa: SLF001
        else:
            out = self._multiply_many(rows)
        if bias is not None:
            out += bias
        shaped: torch.Tensor = out.reshape(*x.shape[:-1], len(self._scale))
        return shaped

    def _multiply_many(self, rows: torch.Tensor) -> torch.Tensor:
        quantized, row_scale, _ = onednn_scaled_int8_quant(rows, None, None, True)
        out = torch.ops.onednn.qlinear_pointwise(
            quantized.view(torch.uint8).bitwise_xor_(_SHIFT),
            1.0,
            0,
            self._packed,
            self._scale,
            self._zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return out.sub_(self._correction).mul_(row_scale).to(rows.dtype)  # type: ignore[no-any-return]


@functools.cache
def register_int8() -> None:
    """Let vLLM use these layers, if ``VLLM_DISABLED_KERNELS`` has its own."""
    register_linear_kernel(Int8LinearWithoutVnni, PlatformEnum.CPU, "int8")
