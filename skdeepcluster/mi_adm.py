"""MI-ADM and MI-D: maximal mutual information of samples and clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .assignments import widen
from .augment import Change
from .autoencoder import Autoencoder
from .base import DeepClusterer
from .information import mi_adm_bound, mutual_information
from .logistic import LogisticClusterer, LogisticObjective
from .targets import exact_mi_adm_target, mi_adm_target

# Weight of a new batch in the running estimate of the cluster sizes, for solver="direct".
_SIZES_RATE = 0.1


class MutualInformation(LogisticObjective):
    r"""The mutual information of a logistic posterior, with an L2 penalty on its weights.

    Parameters
    ----------
    coef : Tensor of shape (k, p)
        Weights :math:`\theta`.
    intercept : Tensor of shape (k,)
        Biases b.
    lam : float
        Weight of the penalty.
    solver : {"adm", "direct"}
        Alternate targets and posterior, or ascend the mutual information itself.
    target : {"closed-form", "exact"}
        The target step of "adm".
    """

    def __init__(self, coef: Tensor, intercept: Tensor, *, lam: float, solver: str, target: str):
        super().__init__(coef, intercept)
        self.lam = lam
        self.solver = solver
        self._make_target = exact_mi_adm_target if target == "exact" else mi_adm_target
        self._sizes: Tensor | None = None

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Cross-entropy to the targets, or minus the mutual information, plus the penalty.

        Directly, the batch says :math:`\frac1B \sum_{ik} p_{ik} \log (p_{ik} / \hat p_k)`. Its
        gradient is that of the whole data's mutual information if :math:`\hat p` is the whole
        data's. The batch's own sizes would make the entropy of the sizes too low by about
        :math:`(K - 1) / 2B` and pull towards equal sizes within every batch. So :math:`\hat p`
        is a constant: exact at the start of an epoch, then a running mean over the batches.
        """
        penalty = self.lam * self.coef.square().sum()
        if self._sizes is None:
            return super().loss(z, index) + penalty / 2
        log_p = torch.log_softmax(z @ self.coef.T + self.intercept, dim=1)
        p = log_p.exp()
        self._sizes = torch.lerp(self._sizes.to(p.dtype), p.detach().mean(dim=0), _SIZES_RATE)
        log_sizes = self._sizes.clamp_min(torch.finfo(p.dtype).tiny).log()
        return (p * (log_sizes - log_p)).sum(dim=1).mean() + penalty

    def _set_targets(self, targets: Tensor, log_p: Tensor) -> None:
        super()._set_targets(targets, log_p)
        if self.solver == "direct":
            self._sizes = log_p.exp().mean(dim=0)

    def _target(self, log_p: Tensor) -> Tensor:
        # The direct solver has none.
        return log_p.exp() if self.solver == "direct" else self._make_target(log_p)

    def _value(self, log_p: Tensor, targets: Tensor) -> float:
        penalty = self.lam * float(widen(self.coef.detach()).square().sum())
        if self.solver == "direct":
            return penalty - float(mutual_information(log_p.exp()))
        return (penalty - float(mi_adm_bound(targets, log_p))) / 2


class MIADM(LogisticClusterer):
    r"""Clustering by the mutual information of samples and clusters (MI-ADM and MI-D).

    A logistic posterior on the embedding,
    :math:`p_{ik} = \mathrm{softmax}_k(\theta_k^\top z_i + b_k)`, should be sure of every sample
    and use all clusters alike: maximise :math:`I(P) = H(\hat p) - \frac1N \sum_i H(p_i)`, with the
    cluster sizes :math:`\hat p_k = \frac1N \sum_i p_{ik}` (Jabi et al. 2021, section 2.1).

    ``solver="adm"`` (MI-ADM) splits that by targets Q into a bound of I(Q) with two easy steps,

    .. math:: A(P, Q) = \frac1N \sum_{ik} q_{ik} \log p_{ik} - \sum_k \hat q_k \log \hat q_k
              - KL(Q \| P), \qquad \text{minimising} \quad -\tfrac12 A(P, Q)
              + \tfrac\lambda2 \sum_k \|\theta_k\|^2 + R

    with the reconstruction loss R of :class:`Autoencoder`. Per epoch: a pass of minibatch steps
    on network, weights and biases, whose clustering loss is the cross-entropy
    :math:`-\frac1N \sum_{ik} q_{ik} \log p_{ik}` and the penalty; then, from all samples,
    :math:`q_{ik} \propto p_{ik}^2 / \sqrt{\sum_j p_{jk}^2}`. ``solver="direct"`` (MI-D) minimises
    :math:`-I(P) + \lambda \sum_k \|\theta_k\|^2 + R` by the minibatch steps alone. The first epochs
    keep the initial labels as targets, until the model agrees with them.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    solver : {"adm", "direct"}, default="adm"
        Alternate between targets and posterior, or ascend the mutual information itself.
    target : {"closed-form", "exact"}, default="closed-form"
        The target step of "adm". The paper's closed form is the exact maximiser of A(P, Q) only
        where the normalisers of all rows are equal, and may lower I(Q), though rarely and by
        little; "exact" finds the maximiser by a fixed point, and cannot (Proposition 3).
    lam : float, default=1e-2
        The :math:`\lambda`: weight of the L2 penalty on the weights; not on the biases. The
        embedding lies in [-1, 1], so lam does not depend on the unit of the data. 0 is legal.
    autoencoder : Autoencoder, FrozenEstimator or None, default=None
        The network and its pretraining; a copy is fitted. A ``FrozenEstimator`` around a fitted
        Autoencoder skips the pretraining and starts from a copy of its weights. None is
        ``Autoencoder()``. Its random_state, augment, precision, device, compile, memory and verbose
        are inherited from here where they are at their defaults there.
    init : {"auto", "graph", "k-means"}, clusterer or array-like, default="auto"
        The initial clustering of the embedding, on which the result depends more than on
        anything else. "graph" is the clustering that holds its nearest neighbour graph together
        best, found by k-means on a neighbour embedding: dense regions of any form (the official
        code of SR-K-means and DEPICT clusters a graph as well); "k-means" is k-means on the
        embedding; "auto" is "graph" from 500 samples on. An estimator or Pipeline with
        ``fit_predict`` is copied, and gets this n_clusters, and a random_state where it has none.
        Or labels, an array of shape (n_samples,).
    n_init : int, default=10
        Restarts of the initial k-means: of "k-means", or on each of the 3 embeddings of "graph".
    max_epochs : "auto" or int, default="auto"
        Epochs of joint training at most, warm-up included. "auto" aims at 2,000 optimiser steps,
        in 16 to 100 epochs. There is no official code; DEPICT's trains up to
        1,000 epochs for the warm-up and 4,000 after.
    tol : float, default=1e-3
        Joint training has converged once no more than this share of the labels changes in an epoch.
    batch_size : "auto" or int, default="auto"
        Rows a step. "auto" is a tenth of the data, from 32 to 256; the papers use 100 or 256.
    lr : float, default=1e-3
        Learning rate of joint training.
    optimizer : str or callable, default="Adam"
        Name in ``torch.optim`` or a class; options by ``functools.partial``. Adam does not mind
        the scale of the loss; plain SGD does.
    augment : {"shift-rotate"}, callable or None, default=None
        Random changes of the training samples that must not change their clusters, see
        :class:`Autoencoder`: in joint training, the changed sample gets the target of the sample
        itself. Pretraining has the same changes, unless ``autoencoder`` has others.
    precision : {"float32", "bfloat16", "auto"}, default="float32"
        Type in which the network computes in training. "bfloat16" has 3 digits, and is faster on
        CPUs and GPUs with instructions for it; weights, targets, losses and predictions stay
        float32 or float64. "auto" is "bfloat16" on such a device, but on a CPU neither for small
        networks nor for convolutions, which do not gain by it.
    device : str or torch.device, default="auto"
        "auto" is CUDA if there is one, else the CPU; "mps" by name.
    compile : bool, default=False
        Whether to let ``torch.compile`` make kernels of the training step: a minute at the start,
        and worth it on a GPU. It needs a C++ compiler.
    memory : str, object with a ``cache`` method, or None, default=None
        Where to keep pretrained networks, see :class:`Autoencoder`: a grid over other parameters
        pretrains once.
    callbacks : list of skorch callbacks or None, default=None
        They run in joint training.
    verbose : int, default=0
        Whether to print a table row per epoch.
    random_state : int, RandomState instance or None, default=None
        Seed of pretraining, initial clustering and joint training, each with a random stream of
        its own. The same int gives the same result, bit by bit, on the same CPU with the same
        number of threads, and the same minibatches for every method. No global random state is
        used or changed: None draws a seed from the operating system.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Label of each sample, int32; equal to ``predict(X)``.
    cluster_centers_ : ndarray of shape (n_clusters, n_components)
        Means of the embeddings, weighted by the posteriors of the clusters.
        ``inverse_transform(cluster_centers_)`` shows them as data.
    coef_ : ndarray of shape (n_clusters, n_components)
    intercept_ : ndarray of shape (n_clusters,)
        Weights and biases: ``predict_proba(X)`` is
        ``softmax(transform(X) @ coef_.T + intercept_, axis=1)``.
    autoencoder_ : Autoencoder
        The network after joint training; ``autoencoder_.module_`` is the torch module.
    objective_ : float
        The function above on the training data at the end, without noise.
    n_iter_ : int
        Number of joint epochs, warm-up included.
    converged_ : bool
        Whether training ended by ``tol``.
    stop_reason_ : {"tol", "max_epochs", "vanishing cluster", "falling modularity", "callback"}
        Why joint training ended. "vanishing cluster": a cluster shrank from a tenth of the mean
        size or more to less than a fiftieth. "falling modularity": clusters ran into each other,
        by a loss of 0.02 of modularity. In both cases training went back to the epoch at which
        modularity was highest.
    history_ : list of dict
        Per epoch: ``phase`` ("pretraining", "warm-up", "joint"), epoch, train_loss, train_loss_best
        (whether it is the lowest so far), dur (seconds); of joint training also
        reconstruction_loss, clustering_loss (as they enter the loss), objective (the clustering
        part, on all samples), mutual_information (of P, in nats), label_change (share),
        smallest_cluster (samples), modularity (of the labels on the neighbour graph of the initial
        embedding), n_reseeded (empty clusters that got a new prototype).
    n_features_in_ : int
        Number of features; channels * height * width for images.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has string names.

    See Also
    --------
    DEPICT : Targets that balance the sizes without sharpening.
    SRKMeans : Nearly the same problem as soft k-means: Proposition 2 leaves out the normaliser of
        the posterior.

    Notes
    -----
    A batch of B samples estimates the entropy of the cluster sizes too low by about
    :math:`(K - 1) / 2B`, and ascending it makes the sizes equal within every batch. So
    ``solver="direct"`` takes the sizes :math:`\hat p` in the gradient
    :math:`\partial I / \partial p_{ik} = \frac1N \log(p_{ik} / \hat p_k)` from all samples at
    the start of an epoch, and then from a running mean over the batches.

    Should a cluster have no samples at the end, weights and biases are replaced by those whose
    labels are the nearest means, with the empty clusters' means moved to the samples that are
    worst represented.

    Cost per epoch: one pass of training and one of the encoder, and O(N K p) for the targets.

    References
    ----------
    M. Jabi, M. Pedersoli, A. Mitiche, I. Ben Ayed, "Deep clustering: On the link between
    discriminative models and K-means", IEEE TPAMI 43(6), 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import MIADM
    >>> X = load_iris().data
    >>> model = MIADM(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    >>> model.predict_proba(X[:5]).shape
    (5, 3)
    >>> model.history_[-1]["mutual_information"] < 1.0986123  # log 3
    True
    """

    _objective = MutualInformation

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "solver": [StrOptions({"adm", "direct"})],
        "target": [StrOptions({"closed-form", "exact"})],
        "lam": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        solver: str = "adm",
        target: str = "closed-form",
        lam: float = 1e-2,
        autoencoder: Autoencoder | FrozenEstimator | None = None,
        init: Any = "auto",
        n_init: int = 10,
        max_epochs: str | int = "auto",
        tol: float = 1e-3,
        batch_size: str | int = "auto",
        lr: float = 1e-3,
        optimizer: str | Callable[..., torch.optim.Optimizer] = "Adam",
        augment: str | Change | None = None,
        precision: str = "float32",
        device: str | torch.device = "auto",
        compile: bool = False,
        memory: Any = None,
        callbacks: Sequence[Any] | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.n_clusters = n_clusters
        self.solver = solver
        self.target = target
        self.lam = lam
        self.autoencoder = autoencoder
        self.init = init
        self.n_init = n_init
        self.max_epochs = max_epochs
        self.tol = tol
        self.batch_size = batch_size
        self.lr = lr
        self.optimizer = optimizer
        self.augment = augment
        self.precision = precision
        self.device = device
        self.compile = compile
        self.memory = memory
        self.callbacks = callbacks
        self.verbose = verbose
        self.random_state = random_state

    def _options(self) -> dict[str, Any]:
        return {"lam": self.lam, "solver": self.solver, "target": self.target}
