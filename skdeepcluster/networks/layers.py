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

_HAS_WIDE_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of rows (n, a) with a weight matrix (b, a), plus a bias (b,)."""
    if _HAS_WIDE_ONEDNN and _is_plain_float32(x, weight) and weight.numel() >= _FEWEST_WEIGHTS:
        return _OneDNNLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def _is_plain_float32(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is one of matrices in float32, on the CPU, by eager torch."""
    return (
        not torch.jit.is_tracing()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.ndim == 2
        and len(x) > 0
        and x.shape[1] == weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
        and not torch.compiler.is_compiling()
        # Inside torch.func's transforms, which know no function of ours.
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` by oneDNN; a weight that is a transposed view is read as it is."""
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


class TransposedConvolution(nn.ConvTranspose2d):
    """``nn.ConvTranspose2d``; to one channel on a CPU, as one product and a sum of its patches.

    oneDNN works on blocks of 16 channels: of a single one, its transposed convolution takes 1.7 to
    1.9 times as long. Of the arguments of ``nn.ConvTranspose2d`` it has those that are used here.
    """

    def __init__(
        self,
        maps: int,
        channels: int,
        kernel: tuple[int, int],
        stride: int,
        padding: int,
        output_padding: tuple[int, int],
        *,
        bias: bool,
    ):
        super().__init__(maps, channels, kernel, stride, padding, output_padding, bias=bias)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Images (n, channels, h, w) of a batch of feature maps (n, maps, h', w')."""
        if self.out_channels > 1 or x.device.type != "cpu" or output_size is not None:
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
        level = min(round(share * 2**16), 2**16 - 1)
        kept = draws.view(torch.int16)[: x.numel()] >= level - 2**15
        share = level / 2**16
        keep.copy_(kept.as_strided(keep.shape, keep.stride()))
    else:
        keep.bernoulli_(1 - share, generator=generator)
    return x * keep.div_(1 - share)
