"""Passes over all samples without gradients, in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..networks import Network
from ..objective import reconstruction_error
from .rows import Rows


@torch.no_grad()
def encode(network: Network, rows: Rows, dtype: torch.dtype = torch.float32) -> Tensor:
    """Clean embeddings (n, p) of all rows, on the rows' device, in the network's type."""
    training = network.training
    network.eval()
    try:
        return torch.cat([network.encode(x) for x in rows.chunks(dtype)])
    finally:
        network.train(training)


@torch.no_grad()
def mean_reconstruction_error(
    network: Network, rows: Rows, dtype: torch.dtype = torch.float32
) -> float:
    """Mean over all rows of the clean pass's reconstruction loss."""
    training = network.training
    network.eval()
    try:
        total = torch.zeros((), dtype=torch.float64)
        for x in rows.chunks(dtype):
            total += reconstruction_error(network, x).cpu().sum(dtype=torch.float64)
        return float(total) / len(rows)
    finally:
        network.train(training)
