"""Autoencoder networks in torch. Nothing here knows of clustering."""

from .conv import conv_autoencoder
from .initialise import build
from .layers import Linear
from .mirrored import MirroredAutoencoder, Network, reconstruct
from .mlp import mlp_autoencoder

__all__ = [
    "Linear",
    "MirroredAutoencoder",
    "Network",
    "build",
    "conv_autoencoder",
    "mlp_autoencoder",
    "reconstruct",
]
