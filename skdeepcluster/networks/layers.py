"""Layers that compute what torch's do, where another way to the same numbers is faster on a CPU."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# torch multiplies float32 matrices by MKL, which uses 256-bit vectors on CPUs that are not Intel's;
# oneDNN, which comes with torch as well, uses what there is. Measured on an AMD EPYC with AVX-512:
# 100 against 230 GFLOP/s on one core. Below this many weights the call costs more than is gained.
_FEWEST_WEIGHTS = 2**14

# oneDNN's convolutions work on blocks of 16 channels. Of an image with fewer, the patches are laid
# out as rows of a matrix: 6 times faster for the transposed convolution to one channel.
_FEW_CHANNELS = 16

_HAS_WIDE_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of rows (n, a) with a weight matrix (b, a), plus a bias (b,)."""
    if _HAS_WIDE_ONEDNN and weight.numel() >= _FEWEST_WEIGHTS and _is_plain_float32(x, weight):
        return _OneDNNLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def _is_plain_float32(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is computed in float32, on the CPU, by eager torch."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
        and not torch.compiler.is_compiling()
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` by oneDNN; transposed views are read as they are."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """:func:`linear` with the three products of its forward and backward pass by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _multiply(gradient, weight.T) if for_x else None,
            _multiply(gradient.T, x.T) if for_weight else None,
            gradient.sum(dim=0) if for_bias else None,
        )


class Linear(nn.Linear):
    """``nn.Linear`` through :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows (n, a) to (n, b)."""
        return linear(x, self.weight, self.bias)


class Convolution(nn.Conv2d):
    """``nn.Conv2d``; of few channels on a CPU, as one product with the patches of the images."""

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (n, maps, h', w') of a batch (n, channels, h, w)."""
        if self.in_channels >= _FEW_CHANNELS or x.device.type != "cpu":
            return super().forward(x)
        padding = cast(tuple[int, int], self.padding)
        patches = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        for axis in (0, 1):
            patches = patches.unfold(2 + axis, self.kernel_size[axis], self.stride[axis])
        # One row for each place of the kernel, so that the maps come out channels last.
        patches = patches.permute(0, 2, 3, 1, 4, 5)
        n, rows, columns = patches.shape[:3]
        maps = linear(patches.reshape(n * rows * columns, -1), self.weight.flatten(1), self.bias)
        return maps.view(n, rows, columns, -1).permute(0, 3, 1, 2)


class TransposedConvolution(nn.ConvTranspose2d):
    """``nn.ConvTranspose2d``; to few channels on a CPU, as one product and a sum of its patches."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Images (n, channels, h, w) of a batch of feature maps (n, maps, h', w')."""
        if self.out_channels >= _FEW_CHANNELS or x.device.type != "cpu":
            return super().forward(x, output_size)
        n, maps, *places = x.shape
        padding = cast(tuple[int, int], self.padding)
        height, width = (
            (places[i] - 1) * self.stride[i]
            - 2 * padding[i]
            + self.kernel_size[i]
            + self.output_padding[i]
            for i in (0, 1)
        )
        patches = linear(x.permute(0, 2, 3, 1).reshape(-1, maps), self.weight.flatten(1).T)
        patches = patches.view(n, -1, patches.shape[1]).transpose(1, 2)
        images = F.fold(
            patches, (height, width), self.kernel_size, padding=padding, stride=self.stride
        )
        return images if self.bias is None else images + self.bias[:, None, None]


class MapsToRows(nn.Module):
    """Flattens feature maps, the channels last: as they lie in memory."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows (n, h * w * maps) of a batch (n, maps, h, w)."""
        return x.permute(0, 2, 3, 1).flatten(1)


class RowsToMaps(nn.Module):
    """The inverse of :class:`MapsToRows`."""

    def __init__(self, maps: int, height: int, width: int):
        super().__init__()
        self.shape = (height, width, maps)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (n, maps, h, w) of a batch of rows."""
        return x.unflatten(1, self.shape).permute(0, 3, 1, 2)


class PixelBias(nn.Module):
    """Adds a trainable image, where a convolution's own bias has one number per channel."""

    def __init__(self, image_shape: tuple[int, int, int]):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(image_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Add the image to a batch."""
        return x + self.bias


def masked(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Set entries to 0 with a probability, and scale up the others: inverted dropout."""
    keep = torch.empty_like(x)
    if x.device.type == "cpu":
        # Four 16-bit numbers of a 64-bit one: a quarter of the time of bernoulli_.
        n_draws = -(-x.numel() // 4)
        draws = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        level = min(round(share * 2**16), 2**16 - 1) - 2**15
        kept = draws.view(torch.int16)[: x.numel()] >= level
        keep.copy_(kept.as_strided(keep.shape, keep.stride()))
    else:
        keep.bernoulli_(1 - share, generator=generator)
    return x * keep.div_(1 - share)
