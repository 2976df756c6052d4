r"""Pure tensor math of targets: the auxiliary assignments Q that posteriors P are trained towards.

Each function maps the log-posteriors log P (n, k) to the targets Q (n, k), whose rows sum to 1.
They work on logarithms, so no column of P is too small; one that is exactly 0 stays 0. Natural
logarithms; :math:`\hat p_k = \frac1N \sum_i p_{ik}` and :math:`\hat q_k` are cluster sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ._blocks import blocks, map_rows

# The iteration halves the error at least; 40 were enough for 1e-13 in thousands of random cases.
_MAX_ITERATIONS = 200


def mi_adm_target(log_p: Tensor) -> Tensor:
    r"""MI-ADM's target in closed form, :math:`q_{ik} \propto p_{ik}^2 / \sqrt{\sum_j p_{jk}^2}`.

    It minimises :math:`-A(P, Q)` of :func:`~skdeepcluster.information.mi_adm_bound`
    approximately: it is exact where the normalisers of all rows are equal (Jabi et al. 2021,
    section 2.2).

    Parameters
    ----------
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.

    Returns
    -------
    Tensor of shape (n, k)
        Targets.
    """
    return _targets(2, _log_sums(log_p, lambda rows: 2 * rows) / 2, log_p)


def exact_mi_adm_target(log_p: Tensor) -> Tensor:
    r"""MI-ADM's target exactly: the unique maximiser of A(P, Q) over Q.

    It solves :math:`q_{ik} \propto p_{ik}^2 / \hat q_k`, where :math:`\hat q` are the sizes it
    has itself. They are found by the damped fixed point
    :math:`\hat q \leftarrow \sqrt{\hat q \cdot \mathrm{mean}_i\, q_i(\hat q)}`, which halves the
    error in every round; undamped it may oscillate. With it the mutual information cannot fall
    (Proposition 3): :math:`I(Q) \ge A(P, Q) \ge A(P, P) = I(P)`.

    Parameters
    ----------
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.

    Returns
    -------
    Tensor of shape (n, k)
        Targets.
    """
    log_sizes = _log_sums(log_p) - math.log(len(log_p))
    for _ in range(_MAX_ITERATIONS):
        sums = _log_sums(log_p, partial(_log_targets, 2, log_sizes))
        update = (sums - math.log(len(log_p)) + log_sizes) / 2
        update = torch.log_softmax(update, dim=0)
        change = _finite(update).sub(_finite(log_sizes)).abs().max()
        log_sizes = update
        if change < 1e-13:
            break
    return _targets(2, log_sizes, log_p)


def depict_target(log_p: Tensor, gamma: float = 1.0) -> Tensor:
    r"""DEPICT's target, :math:`q_{ik} \propto p_{ik} / (\sum_j p_{jk})^{\gamma / (1 + \gamma)}`.

    It minimises :math:`KL(Q \| P) + \gamma \sum_k \hat q_k \log \hat q_k` approximately, by
    leaving out the normalisers of the rows. The published exponent 1/2 is that of
    :math:`\gamma = 1` (Ghasedi Dizaji et al. 2017).

    Parameters
    ----------
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.
    gamma : float
        Weight of the balance of the sizes.

    Returns
    -------
    Tensor of shape (n, k)
        Targets.
    """
    return _targets(1, gamma / (1 + gamma) * _log_sums(log_p), log_p)


def dec_target(log_p: Tensor) -> Tensor:
    r"""The target of DEC and IDEC, :math:`q_{ik} \propto p_{ik}^2 / \sum_j p_{jk}`.

    Also what DEPICT's official code uses. It is a step of exponentiated gradient ascent on the
    mutual information, and never lowers it: :math:`I(Q) \ge I(P)`, because I is convex in the
    rows of P at fixed N, and the step raises the mean of the gradient in every row.

    Parameters
    ----------
    log_p : Tensor of shape (n, k)
        Logarithms of the posteriors.

    Returns
    -------
    Tensor of shape (n, k)
        Targets.
    """
    return _targets(2, _log_sums(log_p), log_p)


def _targets(power: int, log_sizes: Tensor, log_p: Tensor) -> Tensor:
    """Targets :func:`_log_targets` as probabilities."""
    return map_rows(lambda rows: _log_targets(power, log_sizes, rows).exp_(), log_p)


def _log_targets(power: int, log_sizes: Tensor, log_p: Tensor) -> Tensor:
    """Logarithm of the targets proportional to a power of p over sizes."""
    return torch.log_softmax(power * log_p - _finite(log_sizes), dim=1)


def _log_sums(log_p: Tensor, function: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """Logarithms of the sums over samples of p, or of a table whose logarithm is made of log p."""
    parts = [torch.logsumexp(function(log_p[rows]), dim=0) for rows in blocks(*log_p.shape)]
    return torch.logsumexp(torch.stack(parts), dim=0)


def _finite(log_sizes: Tensor) -> Tensor:
    """Logarithms of the sizes; a column of zeros is divided by 1 instead, and stays 0."""
    return log_sizes.masked_fill(log_sizes == -math.inf, 0.0)
