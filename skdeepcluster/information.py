"""Pure tensor math of discrete distributions: each function is one formula.

A table of probabilities is (n, k); its rows sum to 1. Logarithms are natural, 0 log 0 = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(p: Tensor) -> Tensor:
    r"""Entropy :math:`-\sum_k p_k \log p_k` over the last axis.

    Parameters
    ----------
    p : Tensor of shape (..., k)
        Probabilities.

    Returns
    -------
    Tensor of shape (...)
        Entropies, in nats, between 0 and log k.
    """
    return -torch.xlogy(p, p).sum(dim=-1)


def mutual_information(p: Tensor) -> Tensor:
    r"""Mutual information between sample and cluster.

    :math:`I(P) = -\sum_k \hat p_k \log \hat p_k + \frac1N \sum_{ik} p_{ik} \log p_{ik}`
    with :math:`\hat p_k = \frac1N \sum_i p_{ik}`, the entropy of the cluster sizes minus the
    mean entropy of a row (Jabi et al. 2021, section 2.1).

    Parameters
    ----------
    p : Tensor of shape (n, k)
        Posteriors.

    Returns
    -------
    Tensor of shape ()
        Mutual information, in nats, between 0 and log k.
    """
    return entropy(p.mean(dim=0)) - entropy(p).mean()
