"""The fully connected autoencoder of DKM, DCN and IDEC."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from .layers import Linear
from .mirrored import MirroredAutoencoder


def mlp_autoencoder(
    n_features: int,
    n_components: int,
    *,
    hidden_layer_sizes: Sequence[int],
    bounded: bool,
    noise: float = 0.0,
    layer_weight: float = 0.0,
) -> MirroredAutoencoder:
    """Mirrored multi-layer perceptron: ReLU hidden layers, linear output.

    Parameters
    ----------
    n_features : int
        Width of input and output.
    n_components : int
        Width of the embedding.
    hidden_layer_sizes : sequence of int
        Widths between input and embedding, for example ``(500, 500, 2000)`` as in DKM.
    bounded : bool
        Whether the embedding goes through a tanh.
    noise, layer_weight : float
        See :class:`MirroredAutoencoder`.

    Returns
    -------
    MirroredAutoencoder
        The network, not yet initialised in any particular way.
    """
    widths = [n_features, *hidden_layer_sizes, n_components]
    steps = list(pairwise(widths))
    encoder: list[nn.Module] = [nn.Sequential(Linear(a, b), nn.ReLU()) for a, b in steps[:-1]]
    encoder.append(nn.Sequential(Linear(*steps[-1]), nn.Tanh() if bounded else nn.Identity()))
    decoder: list[nn.Module] = [
        nn.Sequential(Linear(b, a), nn.ReLU()) for a, b in reversed(steps[1:])
    ]
    decoder.append(Linear(widths[1], n_features))
    return MirroredAutoencoder(
        encoder, decoder, bounded=bounded, noise=noise, layer_weight=layer_weight
    )
