"""The autoencoder all built-in networks share: a stack of layers and its mirror image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from .layers import (
    Linear,
    MapsToRows,
    PixelBias,
    RowsToMaps,
    TransposedConvolution,
    masked,
)

# Modules that compute the same in training and in evaluation.
_WITHOUT_MODES = {
    nn.ModuleList,
    nn.Sequential,
    nn.Identity,
    nn.Conv2d,
    nn.LeakyReLU,
    nn.ReLU,
    nn.Tanh,
    Linear,
    MapsToRows,
    PixelBias,
    RowsToMaps,
    TransposedConvolution,
}


class Network(nn.Module):
    """An autoencoder. A user's module need not inherit from it, only have its methods."""

    #: Whether the embedding lies in [-1, 1].
    bounded: bool = False

    def encode(self, x: Tensor) -> Tensor:
        """Embedding (n, p) of a batch."""
        raise NotImplementedError

    def decode(self, z: Tensor) -> Tensor:
        """Reconstruction of a batch from its embedding (n, p)."""
        raise NotImplementedError


class MirroredAutoencoder(Network):
    r"""An encoder of L layers and a decoder that undoes them one by one.

    With :math:`z^0 = x`, encoder layer l maps :math:`z^{l-1}` to :math:`z^l`, and its mirror
    image maps :math:`\hat z^l` to :math:`\hat z^{l-1}`. In training mode the encoder sees
    masking noise: entries of its inputs are set to 0 with probability ``noise`` and the others
    scaled up by ``1 / (1 - noise)``, at every layer but the last.

    Parameters
    ----------
    encoder : sequence of L modules
        Layers from the input to the embedding.
    decoder : sequence of L modules
        Layers from the embedding to the reconstruction; the first one mirrors the last of
        ``encoder``.
    bounded : bool
        Whether the embedding lies in [-1, 1].
    noise : float
        Share of masked entries, in [0, 1).
    layer_weight : float
        Weight of the reconstruction of hidden layers beside that of the input.

    Attributes
    ----------
    generator : torch.Generator or None
        The random stream of the noise; it must live on the data's device.
    """

    def __init__(
        self,
        encoder: Sequence[nn.Module],
        decoder: Sequence[nn.Module],
        *,
        bounded: bool,
        noise: float,
        layer_weight: float,
    ):
        super().__init__()
        self.encoder = nn.ModuleList(encoder)
        self.decoder = nn.ModuleList(decoder)
        self.bounded = bounded
        self.noise = noise
        self.layer_weight = layer_weight
        self.generator: torch.Generator | None = None

    def train(self, mode: bool = True) -> MirroredAutoencoder:
        """Set the mode: of this module alone where no other one has modes, which is quick."""
        modules = self.modules()
        next(modules)
        if any(type(module) not in _WITHOUT_MODES for module in modules):
            return super().train(mode)
        self.training = mode
        return self

    @property
    def output_bias(self) -> nn.Parameter:
        """What the decoder adds to every sample last: one number per entry of the input.

        Training starts best from the data's mean here. Otherwise the quickest way to the mean is
        through the embedding: all samples are driven to the same end of the tanh, and stay there
        for epochs or for good.
        """
        last = self.decoder[-1]
        while isinstance(last, nn.Sequential):
            last = last[-1]
        return cast(nn.Parameter, last.bias)

    def encode(self, x: Tensor) -> Tensor:
        """Embedding (n, p) of a batch, without noise."""
        for layer in self.encoder:
            x = layer(x)
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Reconstruction of a batch from its embedding (n, p)."""
        for layer in self.decoder:
            z = layer(z)
        return z

    def reconstruct(self, x: Tensor) -> tuple[Tensor, list[tuple[float, Tensor, Tensor]]]:
        """Embedding of the (in training mode noisy) pass and the terms of its reconstruction loss.

        Returns
        -------
        z : Tensor of shape (n, p)
            Embedding.
        terms : list of (weight, target, reconstruction)
            The input first, then the hidden layers where ``layer_weight`` is not 0. Targets
            are clean activations and carry no gradient: with one, the network could lower the
            loss by shrinking its hidden layers, and the clean pass would cost a backward pass.
        """
        noisy = self.training and self.noise > 0
        hidden = [x]
        for depth, layer in enumerate(self.encoder, start=1):
            h = (
                masked(hidden[-1], self.noise, self.generator)
                if noisy and depth < len(self.encoder)
                else hidden[-1]
            )
            hidden.append(layer(h))
        z = hidden[-1]

        outputs = [z]
        for layer in self.decoder:
            outputs.append(layer(outputs[-1]))
        terms = [(1.0, x, outputs[-1])]
        if self.layer_weight > 0:
            targets = self._clean_hidden(x) if noisy else [h.detach() for h in hidden[1:-1]]
            terms += [
                (self.layer_weight, target, output)
                for target, output in zip(targets, reversed(outputs[1:-1]), strict=True)
            ]
        return z, terms

    @torch.no_grad()
    def _clean_hidden(self, x: Tensor) -> list[Tensor]:
        """Activations of the hidden layers without noise."""
        hidden = []
        for layer in self.encoder[:-1]:
            x = layer(x)
            hidden.append(x)
        return hidden


def reconstruct(network: Network, x: Tensor) -> tuple[Tensor, list[tuple[float, Tensor, Tensor]]]:
    """:meth:`MirroredAutoencoder.reconstruct`, for any module with ``encode`` and ``decode``."""
    if isinstance(network, MirroredAutoencoder):
        return network.reconstruct(x)
    z = network.encode(x)
    return z, [(1.0, x, network.decode(z))]
