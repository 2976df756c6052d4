"""Passes over all samples without gradients, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from ..networks import Network
from ..objective import reconstruction_error
from .rows import Rows


@contextmanager
def _evaluating(network: Network) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the mode is what it was."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


def encode(network: Network, rows: Rows, dtype: torch.dtype = torch.float32) -> Tensor:
    """Embeddings (n, p) of all rows without noise, on the rows' device, in the network's type."""
    out = None
    filled = 0
    with _evaluating(network):
        for x in rows.chunks(dtype):
            z = network.encode(x)
            if out is None:
                out = z.new_empty(len(rows), *z.shape[1:])
            out[filled : filled + len(z)] = z
            filled += len(z)
    return cast(Tensor, out)


def mean_reconstruction_error(
    network: Network, rows: Rows, dtype: torch.dtype = torch.float32
) -> float:
    """Mean over all rows of the reconstruction loss without noise."""
    total = torch.zeros((), dtype=torch.float64)
    with _evaluating(network):
        for x in rows.chunks(dtype):
            total += reconstruction_error(network, x).cpu().sum(dtype=torch.float64)
    return float(total) / len(rows)
