"""IDEC and DEC: relative entropy to sharpened targets, Student's t around the prototypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from .assignments import label_means, log_student_t, reseed_empty, squared_distances, widen
from .augment import Change
from .autoencoder import Autoencoder
from .base import DeepClusterer, PosteriorMixin
from .information import kl_divergence, mutual_information
from .objective import Objective
from .targets import dec_target


class SharpenedDivergence(Objective):
    r"""The loss :math:`\lambda\, KL(Q \| P)` with Student's t posteriors P and DEC's targets Q.

    Parameters
    ----------
    prototypes : Tensor of shape (k, p)
        Prototypes, trained by gradient.
    lam : float
        Weight of the loss.
    reconstruct : bool
        Whether the reconstruction loss is trained as well (IDEC) or not (DEC).
    """

    warm_up = True

    def __init__(self, prototypes: Tensor, *, lam: float, reconstruct: bool):
        super().__init__()
        self.prototypes = nn.Parameter(prototypes)
        self.lam = lam
        self.reconstruction_weight = float(reconstruct)

    def start(self, z: Tensor, labels: Tensor) -> None:
        """Prototypes are the means of the initial clusters."""
        fallback = widen(self.prototypes.data)
        self.prototypes.data.copy_(label_means(z, labels, fallback))
        self._targets = F.one_hot(labels, len(fallback)).float()

    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """Targets from the posteriors of all samples."""
        if labels is not None:
            self.start(z, labels)
        log_p = self.log_posterior(z)
        self.labels = log_p.argmax(dim=1)
        targets = dec_target(log_p)
        if labels is None:
            self._targets = targets.float()
        return {
            "objective": self.lam * float(kl_divergence(targets, log_p)),
            "mutual_information": float(mutual_information(log_p.exp())),
        }

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Batch mean of :math:`\lambda \sum_k q_{ik} \log(q_{ik} / p_{ik})`; q are constants."""
        distances = (z[:, None] - self.prototypes).square().sum(dim=2)
        return self.lam * kl_divergence(self._targets[index], log_student_t(distances))

    def log_posterior(self, z: Tensor) -> Tensor:
        r"""Logarithm of :math:`p_{ik} \propto (1 + \|z_i - \mu_k\|^2)^{-1}`, in float64."""
        return log_student_t(squared_distances(z, self.prototypes.detach()))

    def energy(self, z: Tensor) -> float:
        r"""The loss at the targets that the posteriors of z imply."""
        log_p = self.log_posterior(z)
        return self.lam * float(kl_divergence(dec_target(log_p), log_p))


class IDEC(PosteriorMixin, DeepClusterer):
    r"""Improved deep embedded clustering (IDEC), and DEC without its reconstruction.

    .. math:: \lambda \, KL(Q \| P) + R, \qquad
              p_{ik} \propto (1 + \|z_i - \mu_k\|^2)^{-1}, \qquad
              q_{ik} \propto p_{ik}^2 / \sum_j p_{jk}

    with Student's t posteriors around trained prototypes :math:`\mu`, targets that sharpen and
    balance them, and the reconstruction loss R of :class:`Autoencoder` (Guo et al. 2017,
    with P and Q named as in the other methods here). Per epoch: a pass of minibatch steps on
    network and prototypes; then the targets, from the posteriors of all samples. The first epochs
    keep the initial labels as targets, until the model agrees with them: this warm-up is not in
    the papers, and brings the initial clustering into the embedding.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    lam : float, default=0.1
        The :math:`\lambda`: weight of clustering beside reconstruction, the paper's number. The
        input here is divided by its standard deviation :math:`\sigma`, which divides the mean
        squared error by :math:`\sigma^2`; so the paper's value divided by the variance of its
        input would be lam here: 0.04 for MNIST, whose pixels it divides by 50.
    reconstruct : bool, default=True
        Whether to train the reconstruction as well. False is DEC (Xie et al. 2016): the decoder
        stays as pretrained while the encoder moves on, and ``inverse_transform`` loses its meaning.
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
        in 16 to 100 epochs. The official code takes 20,000 steps at most, and new targets every 3
        to 140 of them.
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
        Prototypes, in the embedding. ``inverse_transform(cluster_centers_)`` shows them as data.
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
    DEPICT : The same targets for a logistic posterior.
    DeepKMeans : Prototypes trained by gradients of the k-means loss.

    Notes
    -----
    The paper's network is ``Autoencoder(n_components=10, hidden_layer_sizes=(500, 500, 2000),
    embedding_activation="identity", noise=0)``, and its initial clustering ``init="k-means"``.

    References
    ----------
    X. Guo, L. Gao, X. Liu, J. Yin, "Improved deep embedded clustering with local structure
    preservation", IJCAI 2017.

    J. Xie, R. Girshick, A. Farhadi, "Unsupervised deep embedding for clustering analysis",
    ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import IDEC
    >>> X = load_iris().data
    >>> model = IDEC(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    >>> model.predict_proba(X[:5]).shape
    (5, 3)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "lam": [Interval(Real, 0, None, closed="left")],
        "reconstruct": ["boolean"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        lam: float = 0.1,
        reconstruct: bool = True,
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
        self.reconstruct = reconstruct
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
        prototypes = z.new_zeros(self.n_clusters, z.shape[1])
        objective = SharpenedDivergence(prototypes, lam=self.lam, reconstruct=self.reconstruct)
        objective.start(z, cast(Tensor, labels))
        return objective

    def _keep(self, objective: Any, z: Tensor) -> int:
        prototypes, n_reseeded = reseed_empty(z, objective.prototypes.detach().cpu().double())
        self.cluster_centers_ = prototypes.numpy()
        # Parameters may be set anew after the fit.
        self._fitted_options: dict[str, Any] = {"lam": self.lam, "reconstruct": self.reconstruct}
        return n_reseeded

    def _fitted_objective(self) -> SharpenedDivergence:
        return SharpenedDivergence(torch.tensor(self.cluster_centers_), **self._fitted_options)
