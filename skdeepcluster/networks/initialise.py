"""Building networks without touching anybody's random state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from .mirrored import MirroredAutoencoder, Network

# A user's module draws its first weights from torch's global generator, which we restore
# afterwards; two threads must not do that at once. Making one may unpickle another: reentrant.
_GLOBAL_GENERATOR = threading.RLock()


def build(
    make: Callable[[], nn.Module], seed: int | None = None, *, glorot: bool = True
) -> Network:
    """Call ``make`` and initialise what it returns, reproducibly and on the CPU.

    Built-in networks get Glorot uniform weights and zero biases, as in the official code. A
    user's module initialises itself, from torch's global generator, which is seeded for the
    occasion and put back. Without a seed the weights are only allocated, to be loaded later.

    Parameters
    ----------
    make : callable
        Returns a new network.
    seed : int or None
        Seed of the initial weights.
    glorot : bool
        Whether to initialise a :class:`MirroredAutoencoder`; not if it brings weights of its own.

    Returns
    -------
    Network
        The network.
    """
    with _GLOBAL_GENERATOR:
        state = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed or 0)
            network = cast(Network, make())
        finally:
            torch.default_generator.set_state(state)
    if glorot and isinstance(network, MirroredAutoencoder):
        generator = torch.Generator().manual_seed(seed or 0)
        for parameter in network.parameters():
            if parameter.ndim == 1 or parameter is network.output_bias:
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter, generator=generator)
    return network
