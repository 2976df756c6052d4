"""Pure tensor math of prototypes and assignments: each function is one formula.

Shapes: ``z`` is (n, p), ``prototypes`` is (k, p), everything per pair is (n, k).
Distances and sums over samples are accumulated in float64, because the soft
assignment divides them by a temperature that may be tiny.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ._blocks import blocks, map_rows, sum_rows


def squared_distances(z: Tensor, prototypes: Tensor) -> Tensor:
    r"""Squared Euclidean distances :math:`\|z_i - \theta'_k\|^2`, in float64.

    Computed from differences: the shorter :math:`\|z\|^2 + \|\theta\|^2 - 2 z\theta`
    loses digits to cancellation, and can be negative.

    Parameters
    ----------
    z : Tensor of shape (n, p)
        Embeddings.
    prototypes : Tensor of shape (k, p)
        Prototypes.

    Returns
    -------
    Tensor of shape (n, k)
        Squared distances, float64.
    """
    prototypes = widen(prototypes)
    out = prototypes.new_empty(len(z), len(prototypes))
    for rows in blocks(len(z), prototypes.numel()):
        torch.sum((widen(z[rows, None]) - prototypes).square_(), dim=2, out=out[rows])
    return out


def log_soft_assignment(distances: Tensor, temperature: float) -> Tensor:
    r"""Logarithm of :math:`q_{ik} = \mathrm{softmax}_k(-D_{ik} / T)`.

    With :math:`T = \lambda K` this is the exact minimiser over Q of the soft regularised
    k-means energy (Jabi et al. 2021), and the posterior of a Gaussian mixture with equal
    weights and variance :math:`T/2`.

    Parameters
    ----------
    distances : Tensor of shape (n, k)
        Squared distances D.
    temperature : float
        The temperature T, positive.

    Returns
    -------
    Tensor of shape (n, k)
        Log-probabilities; the exponentials of a row sum to 1.
    """

    def rows(distances: Tensor) -> Tensor:
        # The nearest prototype's distance is taken off first, so that no quotient overflows.
        excess = distances - distances.min(dim=1, keepdim=True).values
        return torch.log_softmax(-excess / temperature, dim=1)

    return map_rows(rows, distances)


def weighted_means(z: Tensor, weights: Tensor, fallback: Tensor) -> Tensor:
    r"""Prototypes :math:`\theta'_k = \sum_i q_{ik} z_i / \sum_i q_{ik}`, in float64.

    The exact minimiser of the energy over the prototypes. A cluster without any weight
    keeps its row of ``fallback``.

    Parameters
    ----------
    z : Tensor of shape (n, p)
        Embeddings.
    weights : Tensor of shape (n, k)
        Assignments q, hard or soft.
    fallback : Tensor of shape (k, p)
        Prototypes of clusters without weight.

    Returns
    -------
    Tensor of shape (k, p)
        Prototypes, float64.
    """
    sums = torch.zeros_like(widen(fallback))
    mass = torch.zeros_like(sums[:, :1])
    for rows in blocks(len(z), weights.shape[1] + z.shape[1]):
        q = widen(weights[rows])
        sums += q.T @ widen(z[rows])
        mass += q.sum(dim=0)[:, None]
    return torch.where(mass > 0, sums / mass.clamp_min(torch.finfo(mass.dtype).tiny), fallback)


def log_student_t(distances: Tensor) -> Tensor:
    r"""Logarithm of :math:`p_{ik} \propto (1 + D_{ik})^{-1}`.

    The posterior of DEC and IDEC, by Student's t with one degree of freedom: its tails are heavy,
    so far samples still pull.

    Parameters
    ----------
    distances : Tensor of shape (n, k)
        Squared distances D.

    Returns
    -------
    Tensor of shape (n, k)
        Log-probabilities; the exponentials of a row sum to 1.
    """
    return map_rows(lambda d: torch.log_softmax(-torch.log1p(d), dim=1), distances)


def log_logistic(z: Tensor, coef: Tensor, intercept: Tensor) -> Tensor:
    r"""Logarithm of :math:`p_{ik} = \mathrm{softmax}_k(\theta_k^\top z_i + b_k)`, in float64.

    Parameters
    ----------
    z : Tensor of shape (n, p)
        Embeddings.
    coef : Tensor of shape (k, p)
        Weights :math:`\theta`.
    intercept : Tensor of shape (k,)
        Biases b.

    Returns
    -------
    Tensor of shape (n, k)
        Log-probabilities; the exponentials of a row sum to 1.
    """
    coef, intercept = widen(coef.T), widen(intercept)
    return map_rows(lambda rows: torch.log_softmax(widen(rows) @ coef + intercept, dim=1), z)


def logistic_form(prototypes: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""The soft assignment of :func:`log_soft_assignment` as a logistic posterior.

    :math:`\mathrm{softmax}_k(-\|z - \theta'_k\|^2 / T) = \mathrm{softmax}_k(\theta_k^\top z + b_k)`
    with :math:`\theta_k = \frac2T \theta'_k` and :math:`b_k = -\frac1T \|\theta'_k\|^2`: equality
    for every z, and the only pair up to one vector and one number that all clusters share (Jabi
    et al. 2021, Proposition 2, without the approximations of its bias).

    Parameters
    ----------
    prototypes : Tensor of shape (k, p)
        Prototypes.
    temperature : float
        The temperature T.

    Returns
    -------
    coef : Tensor of shape (k, p)
        Weights :math:`\theta`, float64.
    intercept : Tensor of shape (k,)
        Biases b, float64.
    """
    prototypes = widen(prototypes)
    return 2 / temperature * prototypes, -prototypes.square().sum(dim=1) / temperature


def running_means(
    z: Tensor, labels: Tensor, means: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Move means towards the samples assigned to them, each by one over its count so far.

    One sample after the other that is :math:`c \leftarrow c + 1`,
    :math:`m \leftarrow (1 - \frac1c) m + \frac1c z` (DCN); of a whole batch,
    :math:`m_k \leftarrow (c_k m_k + \sum_{i \in k} z_i) / (c_k + n_k)` is exactly the same.

    Parameters
    ----------
    z : Tensor of shape (b, p)
        Embeddings of a batch.
    labels : Tensor of shape (b,)
        Their clusters.
    means : Tensor of shape (k, p)
        Means so far, float64.
    counts : Tensor of shape (k,)
        Samples that each mean stands for, float64.

    Returns
    -------
    means : Tensor of shape (k, p)
        New means; one without new samples is unchanged.
    counts : Tensor of shape (k,)
        New counts.
    """
    added = torch.zeros_like(counts).index_add(0, labels, torch.ones_like(labels).to(counts))
    sums = torch.zeros_like(means).index_add(0, labels, z.to(means.dtype))
    total = counts + added
    moved = (counts[:, None] * means + sums) / total[:, None].clamp_min(1)
    return torch.where(added[:, None] > 0, moved, means), total


def mean_row(z: Tensor) -> Tensor:
    """Mean (p,) of all samples, in float64."""
    return sum_rows(widen, z) / len(z)


def covariance(z: Tensor) -> Tensor:
    """Covariance (p, p) of all samples, in float64."""
    mean = mean_row(z)
    total = torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=z.device)
    for rows in blocks(*z.shape):
        centred = widen(z[rows]) - mean
        total += centred.T @ centred
    return total / len(z)


def label_means(z: Tensor, labels: Tensor, fallback: Tensor) -> Tensor:
    """Means of the samples of each label: :func:`weighted_means` for hard assignments.

    Parameters
    ----------
    z : Tensor of shape (n, p)
        Embeddings.
    labels : Tensor of shape (n,)
        Their clusters, int64.
    fallback : Tensor of shape (k, p)
        Means of labels without samples.

    Returns
    -------
    Tensor of shape (k, p)
        Means, float64.
    """
    sums = torch.zeros_like(widen(fallback))
    for rows in blocks(len(z), len(fallback) + z.shape[1]):
        # A product, because sums at indices are not reproducible on a GPU.
        sums += widen(F.one_hot(labels[rows], len(fallback))).T @ widen(z[rows])
    counts = torch.bincount(labels, minlength=len(fallback))[:, None]
    return torch.where(counts > 0, sums / counts.clamp_min(1), fallback)


def reseed_empty(
    z: Tensor, prototypes: Tensor, movable: Tensor | None = None
) -> tuple[Tensor, int]:
    """Move the prototype of every cluster without samples to the worst represented sample.

    That sample is the one farthest from its own prototype, among clusters with two distinct
    samples or more, so that the number of filled clusters grows. Where no such sample is left
    (fewer distinct embeddings than prototypes) the cluster stays empty.

    Parameters
    ----------
    z : Tensor of shape (n, p)
        Embeddings.
    prototypes : Tensor of shape (k, p)
        Prototypes.
    movable : Tensor of shape (k,), or None
        Mask of the prototypes that may move; None for all.

    Returns
    -------
    prototypes : Tensor of shape (k, p)
        Prototypes; the same object where no cluster was empty.
    n_moved : int
        How many prototypes were moved.
    """
    distances = squared_distances(z, prototypes)
    spent = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    n_moved = 0
    while True:
        nearest, labels = distances.min(dim=1)
        counts = torch.bincount(labels, minlength=len(prototypes))
        empty = counts == 0 if movable is None else (counts == 0) & movable
        candidates = torch.where((counts[labels] > 1) & ~spent, nearest, 0.0)
        far = candidates.argmax()
        if not empty.any() or candidates[far] <= 0:
            return prototypes, n_moved
        twins = (z == z[far]).all(dim=1)
        if twins.sum() == counts[labels[far]]:
            # A cluster of copies of one sample would move as a whole, and be empty itself.
            spent |= twins
            continue
        moved = empty.nonzero()[0]
        prototypes = prototypes.index_copy(0, moved, z[far][None].to(prototypes.dtype))
        distances[:, moved] = squared_distances(z, prototypes[moved])
        spent.zero_()
        n_moved += 1


def widen(x: Tensor) -> Tensor:
    """Cast to float64, for sums and differences; on MPS, which has none, to float32."""
    return x.float() if x.device.type == "mps" else x.double()
