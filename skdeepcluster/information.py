"""Pure tensor math of discrete distributions: each function is one formula.

A table of probabilities is (n, k); its rows sum to 1. Logarithms are natural, 0 log 0 = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._blocks import sum_rows


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
    sizes = sum_rows(lambda rows: rows, p) / len(p)
    return entropy(sizes) - sum_rows(entropy, p) / len(p)


def kl_divergence(q: Tensor, log_p: Tensor) -> Tensor:
    r"""Mean relative entropy of the rows of two tables.

    :math:`KL(Q \| P) = \frac1N \sum_{ik} q_{ik} \log (q_{ik} / p_{ik})`

    Parameters
    ----------
    q : Tensor of shape (n, k)
        Targets.
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.

    Returns
    -------
    Tensor of shape ()
        Divergence, in nats; infinite where p is 0 and q is not.
    """

    def rows(q: Tensor, log_p: Tensor) -> Tensor:
        cross = torch.where(q > 0, q * log_p, 0.0)
        return (torch.xlogy(q, q) - cross).sum(dim=1)

    return sum_rows(rows, q, log_p) / len(q)


def mi_adm_bound(q: Tensor, log_p: Tensor) -> Tensor:
    r"""The function A(P, Q) that MI-ADM maximises, a lower bound of I(Q).

    .. math:: A(P, Q) = \frac1N \sum_{ik} q_{ik} \log p_{ik} - \sum_k \hat q_k \log \hat q_k
              - KL(Q \| P) = I(Q) - 2\, KL(Q \| P)

    It is tight at Q = P, where it is I(P). Half of its negative is DEPICT's objective with
    :math:`\gamma = \tfrac12` plus half of the entropy of Q (Jabi et al. 2021, Proposition 1).

    Parameters
    ----------
    q : Tensor of shape (n, k)
        Targets.
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.

    Returns
    -------
    Tensor of shape ()
        The bound, in nats.
    """
    return mutual_information(q) - 2 * kl_divergence(q, log_p)
