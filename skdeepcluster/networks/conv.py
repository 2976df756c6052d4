"""The convolutional autoencoder of SR-K-means and DEPICT."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from .layers import (
    Linear,
    MapsToRows,
    PixelBias,
    RowsToMaps,
    TransposedConvolution,
)
from .mirrored import MirroredAutoencoder

# Slope of the leaky ReLU below 0, as in the official networks.
_LEAK = 0.01


def conv_autoencoder(
    image_shape: tuple[int, int, int],
    n_components: int,
    *,
    maps: Sequence[int],
    kernel_sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    bounded: bool,
    noise: float = 0.1,
    layer_weight: float = 0.1,
) -> MirroredAutoencoder:
    """Mirrored convolutional network: leaky ReLU hidden layers, linear output.

    A convolution maps a side of length s to ``(s + 2 * padding - kernel) // stride + 1``. What
    that division drops, the transposed convolution adds again as output padding, so the
    reconstruction has the input's shape for every size. Where the padded image is smaller
    than the kernel, the kernel shrinks to fit it.

    Parameters
    ----------
    image_shape : tuple (channels, height, width)
        Shape of one sample.
    n_components : int
        Width of the embedding.
    maps, kernel_sizes, strides, paddings : sequences of int, of equal length
        One entry per convolution.
    bounded : bool
        Whether the embedding goes through a tanh.
    noise, layer_weight : float
        See :class:`MirroredAutoencoder`.

    Returns
    -------
    MirroredAutoencoder
        The network, not yet initialised in any particular way.
    """
    encoder: list[nn.Module] = []
    decoder: list[nn.Module] = []
    channels, height, width = image_shape
    for depth, (n_maps, size, stride, padding) in enumerate(
        zip(maps, kernel_sizes, strides, paddings, strict=True)
    ):
        kernel = (min(size, height + 2 * padding), min(size, width + 2 * padding))
        span = (height + 2 * padding - kernel[0], width + 2 * padding - kernel[1])
        encoder.append(
            nn.Sequential(
                nn.Conv2d(channels, n_maps, kernel, stride, padding),
                nn.LeakyReLU(_LEAK),
            )
        )
        output = depth == 0
        inverse = TransposedConvolution(
            n_maps,
            channels,
            kernel,
            stride,
            padding,
            (span[0] % stride, span[1] % stride),
            bias=not output,
        )
        finish = PixelBias(image_shape) if output else nn.LeakyReLU(_LEAK)
        decoder.insert(0, nn.Sequential(inverse, finish))
        channels, height, width = n_maps, span[0] // stride + 1, span[1] // stride + 1

    code_shape = (channels, height, width)
    encoder.append(
        nn.Sequential(
            MapsToRows(),
            Linear(prod(code_shape), n_components),
            nn.Tanh() if bounded else nn.Identity(),
        )
    )
    decoder.insert(
        0,
        nn.Sequential(
            Linear(n_components, prod(code_shape)),
            nn.LeakyReLU(_LEAK),
            RowsToMaps(*code_shape),
        ),
    )
    network = MirroredAutoencoder(
        encoder, decoder, bounded=bounded, noise=noise, layer_weight=layer_weight
    )
    # The faster layout of the inner convolutions, on CPUs and GPUs alike.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
