"""Weights in fp8 with a scale a block, as DeepSeek-V3's checkpoint has them."""

from typing import Any

import torch
from torch.nn import functional as F

BLOCK = 128
LARGEST = float(torch.finfo(torch.float8_e4m3fn).max)
QUANTISED: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
}
"""What config.json says of it."""


def in_fp8(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Projections become fp8 beside a `*_scale_inv`; embeddings, head, norms and routers stay."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and "_proj" in name and "eh_proj" not in name:
            out[name], out[f"{name}_scale_inv"] = quantise(tensor)
        else:
            out[name] = tensor
    return out


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[rows, columns]` -> fp8 of the same shape, and float32 scales, one a block, cut-off blocks included."""
    rows, columns = weight.shape
    padded = F.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / LARGEST
    values = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return values.to(torch.float8_e4m3fn).contiguous(), scales
