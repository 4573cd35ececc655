"""The language prompt of NeMo's ``EncDecRNNTBPEModelWithPrompt``, such as Nemotron 3.5, in torch.

Behind the encoder, a one-hot vector of the language is appended to every frame, and two layers make a frame
of the same width of it. The encoder itself, and all that it remembers, does not depend on the language.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.asr.streaming.prompt_graph import PARAMETERS
from parley.errors import ModelLoadingError


class LanguagePrompt(nn.Module):
    """The two layers, in single precision.

    Args:
        first: weights ``[inner, width + prompts]``.
        first_bias: ``[inner]``.
        second: weights ``[width, inner]``.
        second_bias: ``[width]``.
    """

    def __init__(self, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> None:
        super().__init__()
        width = len(second)
        self._frames = first[:, :width].contiguous()
        # A product with a one-hot vector is a column.
        self._languages = first[:, width:].T.contiguous()
        self._first_bias, self._second, self._second_bias = first_bias, second, second_bias

    @classmethod
    def of(
        cls, weights: Mapping[str, Tensor], prompts: Mapping[str, int], width: int, device: torch.device
    ) -> LanguagePrompt | None:
        """The layers of a model with prompts; None: it has none.

        Args:
            weights: of the whole model.
            prompts: indices by language, as the model's description has them.
            width: of the encoder's frames.
            device: where they are put.

        Raises:
            ModelLoadingError: weights and description do not belong together.
        """
        own = {name: weights[name].to(device, torch.float32) for name in PARAMETERS if name in weights}
        if bool(own) != bool(prompts):
            there, lacks = ("the weights", "config.json") if own else ("config.json", "the weights")
            raise ModelLoadingError(f"a language prompt is in {there}, but not in {lacks}")
        if not own:
            return None
        shapes = [list(tensor.shape) for tensor in own.values()]
        inner, inputs = [*shapes[0], 0][:2]
        count = inputs - width
        if shapes != [[inner, inputs], [inner], [width, inner], [width]] or count <= max(prompts.values()):
            raise ModelLoadingError(
                f"the language prompt has weights of {shapes}, for frames of {width} and the highest prompt "
                f"{max(prompts.values())}"
            )
        return cls(*own.values())

    def forward(self, frames: Tensor, prompts: Tensor) -> Tensor:
        """Frames f32 ``[B, T, width]`` of a language, i64 ``[B]``: of the same shape."""
        language = self._languages.index_select(0, prompts)[:, None]
        inner = functional.relu(functional.linear(frames, self._frames, self._first_bias) + language)
        return functional.linear(inner, self._second, self._second_bias)
