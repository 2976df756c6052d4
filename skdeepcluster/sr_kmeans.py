"""SR-K-means: soft regularised k-means on a learned embedding."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval
from torch import Tensor
from torch.nn import functional as F

from ._blocks import sum_rows
from .assignments import (
    covariance,
    label_means,
    log_soft_assignment,
    logistic_form,
    mean_row,
    reseed_empty,
    squared_distances,
    weighted_means,
    widen,
)
from .augment import Change
from .autoencoder import Autoencoder
from .base import DeepClusterer, PosteriorMixin
from .information import mutual_information
from .objective import Objective


class SoftKMeans(Objective):
    r"""The SR-K-means energy, per sample and over the temperature :math:`T = \lambda K`.

    .. math:: \frac{E(Q, \Theta')}{N \lambda K} = \frac{1}{N \lambda K} \Big[ \sum_{ik} q_{ik}
              \|z_i - \theta'_k\|^2 + \lambda K \sum_{ik} q_{ik} \log q_{ik}
              - \sum_i \|z_i\|^2 \Big]

    Parameters
    ----------
    temperature : float
        The product of lam and the number of clusters.
    prototypes : Tensor of shape (k, p)
        Prototypes :math:`\theta'`, float64.
    centred : bool
        Whether the batch loss measures :math:`\|z_i\|^2` from the mean of all embeddings.
    """

    warm_up = True
    prototypes: Tensor

    def __init__(self, temperature: float, prototypes: Tensor, *, centred: bool = False):
        super().__init__()
        self.temperature = temperature
        self.centred = centred
        self.register_buffer("prototypes", prototypes)

    def start(self, z: Tensor, labels: Tensor) -> None:
        """Targets are the initial labels, prototypes their means."""
        self._follow(z, labels)

    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """Prototypes from the old targets and the new embeddings, then new targets."""
        n_reseeded = 0
        if labels is None:
            self.prototypes = weighted_means(z, self._targets, fallback=self.prototypes)
        else:
            self._follow(z, labels)
        distances, posterior = self._assign(z)
        # A cluster is lost when it has no weight. Prototypes above the merging temperature are
        # nearest to no sample either, but theirs is the theory's place: the mean.
        lost = posterior.sum(dim=0) < 0.5
        if labels is None and lost.any():
            self.prototypes, n_reseeded = reseed_empty(z, self.prototypes, movable=lost)
            distances, posterior = self._assign(z)
        self.labels = posterior.argmax(dim=1)
        if labels is None:
            self._set_targets(posterior, z)
        return {
            "objective": self._energy(z, distances, posterior),
            "mutual_information": float(mutual_information(posterior)),
            "n_reseeded": n_reseeded,
        }

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Batch mean of :math:`(\sum_k q_{ik} \|z_i - \theta'_k\|^2 - \|z_i\|^2) / T`.

        The squares of z cancel, which leaves a linear function of it. Centred, the last term is
        :math:`\|z_i - \bar z\|^2`.
        """
        terms, prototypes = self._prototype_terms.to(z.dtype), self._prototypes.to(z.dtype)
        excess = torch.addmm(terms, z, prototypes.T, alpha=-2)
        targets = self._targets[index].to(z.dtype)
        return (targets * excess).sum(dim=1).mean() / self.temperature

    def log_posterior(self, z: Tensor) -> Tensor:
        r"""Logarithm of :math:`\mathrm{softmax}_k(-\|z_i - \theta'_k\|^2 / T)`."""
        return log_soft_assignment(squared_distances(z, self.prototypes), self.temperature)

    def energy(self, z: Tensor) -> float:
        r"""The energy at the optimal targets.

        :math:`-\frac1N \sum_i \log \sum_k \exp(-D_{ik} / T) - \frac{1}{N T} \sum_i \|z_i\|^2`
        """
        return self._energy(z, *self._assign(z))

    def _energy(self, z: Tensor, distances: Tensor, posterior: Tensor) -> float:
        """The energy: the logarithm of the sum is that of any one term over its posterior."""

        def rows(z: Tensor, distances: Tensor, posterior: Tensor) -> Tensor:
            nearest = distances.min(dim=1).values - widen(z).square().sum(dim=1)
            return nearest / self.temperature + posterior.max(dim=1).values.log()

        return float(sum_rows(rows, z, distances, posterior)) / len(z)

    def _assign(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances and posteriors."""
        distances = squared_distances(z, self.prototypes)
        return distances, log_soft_assignment(distances, self.temperature).exp_()

    def _follow(self, z: Tensor, labels: Tensor) -> None:
        """Hard targets."""
        self.prototypes = label_means(z, labels, fallback=self.prototypes)
        self._set_targets(F.one_hot(labels, len(self.prototypes)), z)

    def _set_targets(self, targets: Tensor, z: Tensor) -> None:
        """Keep the targets, and the prototypes as a batch needs them."""
        self._targets = targets.to(z.dtype)
        origin = mean_row(z) * float(self.centred)
        norms = self.prototypes.square().sum(dim=1) - origin.square().sum()
        self._prototype_terms = norms.to(z.dtype)
        self._prototypes = (self.prototypes - origin).to(z.dtype)


class SRKMeans(PosteriorMixin, DeepClusterer):
    r"""Soft regularised k-means on the embedding of an autoencoder (SR-K-means).

    Jabi et al. (2021) show that clustering by a logistic posterior with maximal mutual information
    and an L2 penalty is k-means with soft assignments. SR-K-means minimises over targets Q,
    prototypes :math:`\theta'` and the weights of the network

    .. math:: \frac{1}{N \lambda K} \Big[ \sum_{i,k} q_{ik} \|z_i - \theta'_k\|^2
              + \lambda K \sum_{i,k} q_{ik} \log q_{ik} - \sum_i \|z_i\|^2 \Big] + R,

    where :math:`z_i` is the embedding of sample i and R the reconstruction loss of
    :class:`Autoencoder` (section 3, and eq. for the network step in 5.1). Per epoch: a pass of
    minibatch steps on the network; then, from the clean embeddings of all samples,
    :math:`\theta'_k = \sum_i q_{ik} z_i / \sum_i q_{ik}` and
    :math:`q_{ik} = \mathrm{softmax}_k(-\|z_i - \theta'_k\|^2 / (\lambda K))`. The first epochs
    keep the initial labels as targets, until the model agrees with them.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    lam : float, default=1e-3
        The :math:`\lambda`: the assignments' temperature is ``lam * n_clusters``, and
        reconstruction weighs that much against clustering. The embedding lies in [-1, 1] and the
        input is standardised, so lam does not depend on the unit of the data. The papers' value is
        1e-4, on pixels in [-1, 1]: their balance of the two losses is lam times the variance of
        those pixels here. lam above :math:`2 \nu / K`, with :math:`\nu` the largest eigenvalue of
        the embedding's covariance, merges all prototypes into one: a warning tells.
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
        in 16 to 100 epochs. The papers train up to 500 epochs for the warm-up and 500 after.
    tol : float, default=1e-3
        Joint training has converged once no more than this share of the labels changes in an epoch.
    batch_size : "auto" or int, default="auto"
        Rows a step. "auto" is a tenth of the data, from 32 to 256; the papers use 100 or 256.
    lr : float, default=1e-3
        Learning rate of joint training.
    optimizer : str or callable, default="Adam"
        Name in ``torch.optim`` or a class; options by ``functools.partial``. The clustering loss
        is divided by ``lam * n_clusters``: Adam does not mind, plain SGD does.
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
        Prototypes, in the embedding. ``inverse_transform(cluster_centers_)`` shows them as data.
    coef_ : ndarray of shape (n_clusters, n_components)
    intercept_ : ndarray of shape (n_clusters,)
        The same posterior in logistic form (Proposition 2): ``predict_proba(X)`` is
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
        modularity was highest. A larger
        ``n_components`` helps.
    history_ : list of dict
        Per epoch: ``phase`` ("pretraining", "warm-up", "joint"), epoch, train_loss, train_loss_best
        (whether it is the lowest so far), dur (seconds); of joint training also
        reconstruction_loss, clustering_loss, objective (the clustering part, after the E-step),
        mutual_information, label_change (share), smallest_cluster (samples), modularity (of the
        labels on the neighbour graph of the initial embedding), n_reseeded (empty clusters that got
        a new prototype).
    n_features_in_ : int
        Number of features; channels * height * width for images.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has string names.

    See Also
    --------
    Autoencoder : The network and its pretraining.
    sklearn.cluster.KMeans : On data whose groups are round already, as good and far faster.

    Notes
    -----
    The term :math:`-\|z\|^2` keeps the embedding from collapsing, and would let it grow without
    end: SR-K-means needs an embedding that is bounded, by a tanh. The network step measures it from
    the mean of all embeddings, :math:`-\|z_i - \bar z\|^2`: assignments do not change with a
    translation of the embedding, and what all prototypes have in common then does not push all
    samples into the same corner, all clusters in one. So the network step maximises the scatter
    between clusters. ``objective_`` and ``score`` are the
    papers' function.

    Where a cluster is left without samples, after the warm-up or at the end, its prototype moves
    to the sample that is farthest from its own prototype. The warm-up takes half of the epochs at
    most.

    Compared with the official code: targets of the layer-wise reconstruction carry no gradient;
    labels are the argmax of Q (the code's final formula leaves out the norms of the prototypes);
    training stops by the share of changed labels; the warm-up ends by the agreement of the labels
    themselves, not by their NMI on a part of the data that was split off by true labels.

    Cost: an epoch is one forward and backward pass over the data, and one forward pass of the
    encoder for the E-step. Memory beside X: the embeddings and targets, n * (n_components + k).

    References
    ----------
    M. Jabi, M. Pedersoli, A. Mitiche, I. Ben Ayed, "Deep clustering: On the link between
    discriminative models and K-means", IEEE TPAMI 43(6), 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import SRKMeans
    >>> X = load_iris().data
    >>> model = SRKMeans(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    >>> model.inverse_transform(model.cluster_centers_).shape
    (3, 4)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "lam": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        lam: float = 1e-3,
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

    def _check_method(self, autoencoder: Autoencoder) -> None:
        if not autoencoder._is_bounded():
            raise ValueError(
                "SRKMeans needs a bounded embedding: its loss is linear in the embedding, which "
                "would grow without end. Use Autoencoder(embedding_activation='tanh'), or give a "
                "module of your own a tanh at the end of encode() and an attribute bounded=True."
            )

    def _start(self, z: Tensor, labels: Tensor | None, seed: int, max_epochs: int) -> Objective:
        if self.n_clusters > 1:
            # The largest eigenvalue of the covariance.
            nu = float(torch.linalg.eigvalsh(covariance(z).cpu())[-1])
            threshold = 2 * nu / self.n_clusters
            if 0 < threshold < self.lam:
                warnings.warn(
                    f"lam={self.lam:g} is above {threshold:.3g} = 2 nu / n_clusters, with nu the "
                    "largest eigenvalue of the embedding's covariance: all prototypes will merge. "
                    f"Use lam < {threshold:.3g}.",
                    UserWarning,
                    stacklevel=5,
                )
        prototypes = mean_row(z).repeat(self.n_clusters, 1)
        objective = SoftKMeans(self.lam * self.n_clusters, prototypes, centred=True)
        objective.start(z, cast(Tensor, labels))
        return objective

    def _keep(self, objective: Any, z: Tensor) -> int:
        prototypes, n_reseeded = reseed_empty(z, objective.prototypes.cpu().double())
        self.cluster_centers_ = prototypes.numpy()
        # lam and n_clusters may be set anew after the fit.
        self._temperature = self.lam * self.n_clusters
        coef, intercept = logistic_form(prototypes, self._temperature)
        self.coef_, self.intercept_ = coef.numpy(), intercept.numpy()
        return n_reseeded

    def _fitted_objective(self) -> SoftKMeans:
        return SoftKMeans(self._temperature, torch.tensor(self.cluster_centers_))
