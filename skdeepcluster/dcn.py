"""Deep Clustering Network (DCN): k-means on the embedding with running means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval
from torch import Tensor
from torch.nn import functional as F

from .assignments import (
    label_means,
    mean_row,
    reseed_empty,
    running_means,
    squared_distances,
    widen,
)
from .augment import Change
from .autoencoder import Autoencoder
from .base import DeepClusterer
from .objective import Objective


class HardKMeans(Objective):
    r"""The loss :math:`\frac\lambda2 \|z_i - m_{s_i}\|^2` with assignments s and running means m.

    Parameters
    ----------
    prototypes : Tensor of shape (k, p)
        Prototypes m, float64.
    lam : float
        Weight of the loss.
    n_features : int
        Number of features, over which the reconstruction loss is a sum.
    init_count : float
        Samples that each initial prototype stands for.
    """

    warm_up = True
    online = True
    prototypes: Tensor
    counts: Tensor

    def __init__(self, prototypes: Tensor, *, lam: float, n_features: int, init_count: float = 0.0):
        super().__init__()
        self.lam = lam
        self.reconstruction_weight = float(n_features)
        self.init_count = init_count
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("counts", prototypes.new_full((len(prototypes),), init_count))

    def start(self, z: Tensor, labels: Tensor) -> None:
        """Assignments are the initial labels, prototypes their means."""
        self.prototypes = label_means(z, labels, fallback=self.prototypes)
        self._assigned = labels.clone()

    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """Nothing but a new prototype for clusters without samples: the batches do the rest."""
        n_reseeded = 0
        if labels is None:
            before = self.prototypes
            self.prototypes, n_reseeded = reseed_empty(z, before)
            moved = (self.prototypes != before).any(dim=1)
            self.counts = self.counts.masked_fill(moved, self.init_count)
        else:
            self.start(z, labels)
        nearest, self.labels = squared_distances(z, self.prototypes).min(dim=1)
        return {"objective": self._energy(nearest), "n_reseeded": n_reseeded}

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Batch mean of :math:`\frac\lambda2 \|z_i - m_{s_i}\|^2`; s and m are constants."""
        own = self.prototypes[self._assigned[index]].to(z.dtype)
        return self.lam / 2 * (z - own).square().sum(dim=1).mean()

    def after_step(self, z: Tensor, index: Tensor) -> None:
        """Assign the batch to the nearest prototypes, then move those."""
        labels = squared_distances(z, self.prototypes).argmin(dim=1)
        self._assigned[index] = labels
        self.prototypes, self.counts = running_means(z, labels, self.prototypes, self.counts)

    def log_posterior(self, z: Tensor) -> Tensor:
        """Logarithm of the hard assignment: 0 for the nearest prototype, else minus infinity."""
        nearest = squared_distances(z, self.prototypes).argmin(dim=1)
        return widen(F.one_hot(nearest, len(self.prototypes))).log()

    def energy(self, z: Tensor) -> float:
        r"""Mean of :math:`\frac\lambda2 \min_k \|z_i - m_k\|^2`."""
        return self._energy(squared_distances(z, self.prototypes).min(dim=1).values)

    def _energy(self, nearest: Tensor) -> float:
        """The energy, from the squared distances to the nearest prototypes."""
        return self.lam / 2 * float(nearest.mean())


class DCN(DeepClusterer):
    r"""K-means on a learned embedding with running means (Deep Clustering Network, DCN).

    .. math:: \min \; \frac1N \sum_i \Big[ \|x_i - \hat x_i\|^2
              + \frac\lambda2 \|z_i - m_{s_i}\|^2 \Big]

    over the network, the assignments s and the prototypes m (Yang et al. 2017, eq. 5; sums over
    features and over the embedding). Per minibatch, in the order of the official code: a step on
    the network with the assignments that were stored in the last epoch; encode the batch
    anew; assign each sample to its nearest prototype; and move each prototype,
    :math:`m_k \leftarrow (1 - \frac1{c_k}) m_k + \frac1{c_k} z_i` for each of its samples, where
    :math:`c_k` counts them. Before that, a warm-up keeps the initial labels as assignments, and
    their means as prototypes, until the model agrees with them: it is not in the paper, and
    brings the initial clustering into the embedding.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    lam : float, default=100.0
        The :math:`\lambda` of the paper: it weighs clustering, with the half. The official code
        has weights ``lbd`` of reconstruction and ``beta`` of clustering, without the half: the
        same number multiplies opposite terms there. Its (lbd, beta) is lam = 2 * beta / lbd on
        data of its scale; the input here is divided by its standard deviation :math:`\sigma`, so
        divide that by :math:`\sigma^2` of the data it was used on. With less than the default,
        reconstruction pulls samples out of the initial clusters again; with more, clusters drift
        together.
    init_count : float, default=100
        Samples that each initial prototype stands for: the larger, the slower prototypes move.
        100 is in the official code alone. 0 makes them the means of the samples since the start.
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
        in 16 to 100 epochs. The official code trains 50.
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
        Prototypes m, in the embedding. ``inverse_transform(cluster_centers_)`` shows them as data.
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
        part, on all samples), label_change (share), smallest_cluster (samples), modularity (of the
        labels on the neighbour graph of the initial embedding), n_reseeded (empty clusters that got
        a new prototype).
    n_features_in_ : int
        Number of features; channels * height * width for images.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has string names.

    See Also
    --------
    DeepKMeans : Prototypes by gradients, assignments differentiable.
    sklearn.cluster.MiniBatchKMeans : The same update of the prototypes, on the data itself.

    Notes
    -----
    The reconstruction loss is that of :class:`Autoencoder` times the number of features; where
    that has terms of hidden layers (the convolutional network), they are in it.

    Assignments are hard: there is no ``predict_proba``. With an encoder that does not move and
    ``init_count=0`` the prototypes are those of ``MiniBatchKMeans.partial_fit``. The network of the
    official code for MNIST is ``Autoencoder(n_components=10, hidden_layer_sizes=(500, 500, 2000),
    embedding_activation="identity", noise=0)``, with tied weights, which these are not; it runs
    k-means on the embedding again every 10 epochs, which is left out here.

    References
    ----------
    B. Yang, X. Fu, N. D. Sidiropoulos, M. Hong, "Towards K-means-friendly spaces: Simultaneous
    deep learning and clustering", ICML 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import DCN
    >>> X = load_iris().data
    >>> model = DCN(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "lam": [Interval(Real, 0, None, closed="left")],
        "init_count": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        lam: float = 100.0,
        init_count: float = 100,
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
        self.lam = lam
        self.init_count = init_count
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

    def _start(self, z: Tensor, labels: Tensor | None, seed: int, max_epochs: int) -> Objective:
        objective = HardKMeans(
            mean_row(z).repeat(self.n_clusters, 1),
            lam=self.lam,
            n_features=self.n_features_in_,
            init_count=self.init_count,
        )
        objective.start(z, cast(Tensor, labels))
        return objective

    def _keep(self, objective: Any, z: Tensor) -> int:
        prototypes, n_reseeded = reseed_empty(z, objective.prototypes.cpu().double())
        self.cluster_centers_ = prototypes.numpy()
        # lam may be set anew after the fit.
        self._fitted_lam = self.lam
        return n_reseeded

    def _fitted_objective(self) -> HardKMeans:
        return HardKMeans(
            torch.tensor(self.cluster_centers_),
            lam=self._fitted_lam,
            n_features=self.n_features_in_,
        )
