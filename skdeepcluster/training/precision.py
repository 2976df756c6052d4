"""In which type the network computes while it trains."""

from __future__ import annotations

import torch
from torch import nn

# Weights of matrices from which on bfloat16 was measured to pay on a CPU, see benchmarks/speed.py:
# below, casting weights and starting kernels takes longer than is saved. Convolutions there are no
# faster at all.
_FEWEST_WEIGHTS = 2**17


def training_dtype(precision: str, device: torch.device, network: nn.Module) -> torch.dtype:
    """The type that a ``precision`` stands for.

    Parameters
    ----------
    precision : {"float32", "bfloat16", "auto"}
        "auto" is bfloat16 where the device has it and the network gains by it.
    device : torch.device
        Where the network trains.
    network : nn.Module
        The network.

    Returns
    -------
    torch.dtype
        ``torch.float32`` or ``torch.bfloat16``.
    """
    if precision == "auto":
        precision = "bfloat16" if _pays(device, network) else "float32"
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def _pays(device: torch.device, network: nn.Module) -> bool:
    """Whether bfloat16 is the faster type for a network on a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu" or not _has_bfloat16():
        return False
    dimensions = [(parameter.ndim, parameter.numel()) for parameter in network.parameters()]
    n_weights = sum(n for ndim, n in dimensions if ndim == 2)
    return n_weights >= _FEWEST_WEIGHTS and all(ndim < 3 for ndim, _ in dimensions)


def _has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16, rather than imitating it."""
    # Not public, and not in every version of torch.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
