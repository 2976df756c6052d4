"""Deep k-Means (DKM): k-means made differentiable, trained jointly with the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from .assignments import (
    label_means,
    log_soft_assignment,
    logistic_form,
    reseed_empty,
    squared_distances,
    widen,
)
from .augment import Change
from .autoencoder import Autoencoder, auto_epochs
from .base import DeepClusterer, PosteriorMixin
from .information import mutual_information
from .objective import Objective

# Optimiser steps that annealing aims at with max_epochs="auto", and the epochs it keeps to.
_ANNEALING_STEPS = 6_000
_ANNEALING_EPOCHS = (40, 400)

# Values of lam="auto": pretrained, and annealed from scratch, where a larger one pulls the
# embedding into a point before the network has learned anything.
_AUTO_LAM = (100.0, 0.1)


def annealing_schedule(n_values: int = 40) -> np.ndarray:
    r"""Inverse temperatures of the annealed Deep k-Means (DKM_a).

    :math:`\alpha_1 = 0.1` and :math:`\alpha_n = 2^{1 / \ln(n)^2} \alpha_{n-1}`: steep at first,
    then ever slower, up to 28.13 for the paper's 40 values.

    Parameters
    ----------
    n_values : int, default=40
        Number of values.

    Returns
    -------
    ndarray of shape (n_values,)
        Values of alpha, increasing.

    Raises
    ------
    ValueError
        If n_values is less than 1.

    Examples
    --------
    >>> from skdeepcluster import annealing_schedule
    >>> annealing_schedule()[[0, 1, -1]].round(4)
    array([ 0.1   ,  0.4232, 28.1326])
    """
    if n_values < 1:
        raise ValueError(f"n_values={n_values} must be at least 1.")
    n = np.arange(2, n_values + 1)
    return 0.1 * np.cumprod([1.0, *np.exp2(1 / np.log(n) ** 2)])


class DifferentiableKMeans(Objective):
    r"""The loss :math:`\lambda \sum_k D_k G_k`, with :math:`G = \mathrm{softmax}(-\alpha D)`.

    D are the squared distances of an embedding to the prototypes.

    Parameters
    ----------
    prototypes : Tensor of shape (k, p)
        Prototypes r, trained by gradient.
    alphas : ndarray
        Inverse temperatures, for equal spans of the epochs.
    lam : float
        Weight of the loss.
    n_features : int
        Number of features, over which the reconstruction loss is a sum.
    max_epochs : int
        Epochs that the values of alpha are spread over.
    """

    def __init__(
        self,
        prototypes: Tensor,
        alphas: np.ndarray,
        *,
        lam: float,
        n_features: int,
        max_epochs: int = 1,
    ):
        super().__init__()
        self.prototypes = nn.Parameter(prototypes)
        self.alphas = alphas
        self.lam = lam
        self.reconstruction_weight = float(n_features)
        self.max_epochs = max_epochs
        self.alpha = self.trained_alpha = self._alpha_of(0)
        # A schedule is a warm-up of its own.
        self.warm_up = len(alphas) == 1
        self._labels: Any = None

    def start(self, z: Tensor, labels: Tensor) -> None:
        """Prototypes are the means of the initial clusters."""
        self._labels = labels
        fallback = widen(self.prototypes.data)
        self.prototypes.data.copy_(label_means(z, labels, fallback))

    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """The next alpha; prototypes move by gradients alone, but for those without samples."""
        if labels is not None:
            self.start(z, labels)
        distances, weights = self._weigh(z)
        n_reseeded = 0
        # No gradient reaches a prototype whose G is 0 for all samples.
        lost = weights.sum(dim=0) < 0.5
        if labels is None and lost.any():
            moved, n_reseeded = reseed_empty(z, self.prototypes.data, movable=lost)
            self.prototypes.data.copy_(moved)
            distances, weights = self._weigh(z)
        numbers: dict[str, float] = {
            "objective": self.lam * float(torch.linalg.vecdot(distances, weights).mean()),
            "mutual_information": float(mutual_information(weights)),
            "alpha": self.alpha,
            "n_reseeded": n_reseeded,
        }
        self.labels = distances.argmin(dim=1)
        self.trained_alpha, self.alpha = self.alpha, self._alpha_of(epoch + 1)
        return numbers

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Batch mean of :math:`\lambda \sum_k D_{ik} G_{ik}`; gradients flow through G as well."""
        if self.warming:
            own = self.prototypes[self._labels[index]]
            return self.lam * (z - own).square().sum(dim=1).mean()
        distances = (z[:, None] - self.prototypes).square().sum(dim=2)
        weights = torch.softmax(-self.alpha * distances, dim=1)
        return self.lam * (distances * weights).sum(dim=1).mean()

    def is_settled(self, epoch: int) -> bool:
        """Once the schedule is at its last value."""
        return self._position(epoch) == len(self.alphas) - 1

    def log_posterior(self, z: Tensor) -> Tensor:
        r"""Logarithm of G, :math:`\mathrm{softmax}_k(-\alpha \|z_i - r_k\|^2)`, in float64."""
        return log_soft_assignment(squared_distances(z, self.prototypes.detach()), 1 / self.alpha)

    def energy(self, z: Tensor) -> float:
        r"""Mean of :math:`\lambda \sum_k D_{ik} G_{ik}`."""
        distances, weights = self._weigh(z)
        return self.lam * float((distances * weights).sum(dim=1).mean())

    def _weigh(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances D and weights G of all samples, in float64."""
        distances = squared_distances(z, self.prototypes.detach())
        return distances, log_soft_assignment(distances, 1 / self.alpha).exp()

    def _alpha_of(self, epoch: int) -> float:
        """Value of alpha in an epoch."""
        return float(self.alphas[self._position(epoch)])

    def _position(self, epoch: int) -> int:
        """Place in the schedule; that of the last epoch is the last."""
        epoch = min(epoch, self.max_epochs - 1)
        return ((epoch + 1) * len(self.alphas) - 1) // self.max_epochs


class DeepKMeans(PosteriorMixin, DeepClusterer):
    r"""K-means made differentiable, trained jointly with the network (Deep k-Means, DKM).

    Network and prototypes r minimise together, by gradients alone,

    .. math:: \frac1N \sum_i \Big[ \|x_i - \hat x_i\|^2 + \lambda \sum_k \|z_i - r_k\|^2 \,
              G_k(z_i) \Big], \qquad
              G_k(z) = \frac{\exp(-\alpha \|z - r_k\|^2)}{\sum_j \exp(-\alpha \|z - r_j\|^2)}

    (Moradi Fard et al. 2020; sums over features and over the embedding). For
    :math:`\alpha \to \infty` G is the nearest prototype's indicator and the loss that of k-means;
    for :math:`\alpha \to 0` all prototypes are the mean. The gradient flows through G as well.

    ``alpha`` tells the paper's two variants apart. A number (DKM_p) pretrains the network,
    clusters its embedding and starts from the means; a warm-up, which is not in the paper, keeps
    the initial labels as G until the model agrees with them. "anneal" (DKM_a) starts from
    scratch, with an untrained network and random prototypes, and hardens G by an increasing
    schedule.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    lam : "auto" or float, default="auto"
        The :math:`\lambda`: weight of clustering beside reconstruction. "auto" is 100, and 0.1 for
        annealing from scratch. The paper chooses it per data set; its pixels are in
        [0, 1]; the input here is divided by its standard deviation :math:`\sigma`, which divides
        the sum of squares by :math:`\sigma^2`. So the paper's value divided by the variance
        of the pixels, over all of them, is lam here: about 10 times the paper's for MNIST.
    alpha : "anneal", float or array-like, default=1000
        The :math:`\alpha`, an inverse temperature. "anneal" takes the 40 values of
        :func:`annealing_schedule`, from 0.1 to 28.13, spread evenly over ``max_epochs``, without
        pretraining and from random prototypes; an ``Autoencoder`` then only tells the
        architecture (None is one of 10 components: random prototypes in more of them miss the
        data), and a frozen fitted one is where it starts, from the initial clustering.
        A float is constant, an array is spread over the epochs, without a warm-up if it has more
        than one value; both pretrain. alpha scales with the inverse square of the embedding,
        which a tanh confines to [-1, 1].
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
        in 16 to 100 epochs; with a schedule of alpha at 6,000, in 40 to 400. The paper trains 100
        epochs, or 200 with annealing. A schedule of more values than epochs leaves out some.
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
        Prototypes r, in the embedding. ``inverse_transform(cluster_centers_)`` shows them as data.
    coef_ : ndarray of shape (n_clusters, n_components)
    intercept_ : ndarray of shape (n_clusters,)
        G in logistic form: ``predict_proba(X)`` is
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
        part, on all samples), mutual_information (of G), alpha, label_change (share),
        smallest_cluster (samples), modularity (of the labels on the neighbour graph of the initial
        embedding), n_reseeded (empty clusters that got a new prototype).
    n_features_in_ : int
        Number of features; channels * height * width for images.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has string names.

    See Also
    --------
    DCN : Hard assignments and running means instead of gradients.
    SRKMeans : The same posterior at alpha = 1 / (lam * n_clusters), with the entropy in the loss.

    Notes
    -----
    The paper's network is ``Autoencoder(n_components=K, hidden_layer_sizes=(500, 500, 2000),
    embedding_activation="identity", noise=0)``; it trains with Adam at 1e-3 in batches of 256.
    The clustering loss over lam falls with alpha, and is at most :math:`\log(K) / \alpha` above
    that of k-means on z.

    The reconstruction loss is that of :class:`Autoencoder` times the number of features; where
    that has terms of hidden layers (the convolutional network), they are in it.

    An annealed fit does not stop by ``tol`` before alpha has its last value. A prototype that
    no sample has a G for gets no gradient; it is moved to the sample that is worst represented.

    References
    ----------
    M. Moradi Fard, T. Thonet, E. Gaussier, "Deep k-Means: Jointly clustering with k-Means and
    learning representations", Pattern Recognition Letters 138, 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import DeepKMeans
    >>> X = load_iris().data
    >>> model = DeepKMeans(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    >>> model.predict_proba(X[:5]).shape
    (5, 3)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "lam": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "alpha": [Interval(Real, 0, None, closed="neither"), StrOptions({"anneal"}), "array-like"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        lam: str | float = "auto",
        alpha: Any = 1000.0,
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
        self.alpha = alpha
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
        alphas = self._alphas()
        if alphas.ndim != 1 or not len(alphas) or not (np.isfinite(alphas) & (alphas > 0)).all():
            raise ValueError(
                f"alpha={self.alpha!r} must be 'anneal', a positive number, or a one-dimensional "
                "sequence of positive numbers."
            )
        if self._from_scratch() and not (isinstance(self.init, str) and self.init == "auto"):
            raise ValueError(
                f"init={self.init!r} is not used: alpha='anneal' starts from random prototypes. "
                "Leave init at 'auto', or give a fitted network, "
                "autoencoder=FrozenEstimator(Autoencoder().fit(X))."
            )

    def _alphas(self) -> np.ndarray:
        """The schedule."""
        if isinstance(self.alpha, str):
            return annealing_schedule()
        return np.array(self.alpha, dtype=np.float64, ndmin=1)

    def _default_autoencoder(self) -> Autoencoder:
        return Autoencoder(n_components=10 if isinstance(self.alpha, str) else 20)

    def _from_scratch(self) -> bool:
        annealed = isinstance(self.alpha, str)
        return annealed and not isinstance(self.autoencoder, FrozenEstimator)

    def _joint_epochs(self, n_samples: int, batch_size: int) -> int:
        if len(self._alphas()) == 1:
            return super()._joint_epochs(n_samples, batch_size)
        return auto_epochs(
            self.max_epochs,
            n_samples,
            batch_size,
            steps=_ANNEALING_STEPS,
            bounds=_ANNEALING_EPOCHS,
        )

    def _start(self, z: Tensor, labels: Tensor | None, seed: int, max_epochs: int) -> Objective:
        # As in the official code; tanh embeddings lie in that cube.
        prototypes = torch.empty(self.n_clusters, z.shape[1])
        prototypes.uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
        objective = DifferentiableKMeans(
            prototypes.to(z.device),
            self._alphas(),
            lam=_AUTO_LAM[self._from_scratch()] if isinstance(self.lam, str) else self.lam,
            n_features=self.n_features_in_,
            max_epochs=max_epochs,
        )
        if labels is not None:
            objective.start(z, labels)
        return objective

    def _keep(self, objective: Any, z: Tensor) -> int:
        prototypes, n_reseeded = reseed_empty(z, objective.prototypes.detach().cpu().double())
        self.cluster_centers_ = prototypes.numpy()
        # lam and alpha may be set anew after the fit.
        self._fitted_lam, self._fitted_alpha = objective.lam, objective.trained_alpha
        coef, intercept = logistic_form(prototypes, 1 / self._fitted_alpha)
        self.coef_, self.intercept_ = coef.numpy(), intercept.numpy()
        return n_reseeded

    def _fitted_objective(self) -> DifferentiableKMeans:
        return DifferentiableKMeans(
            torch.tensor(self.cluster_centers_),
            np.array([self._fitted_alpha]),
            lam=self._fitted_lam,
            n_features=self.n_features_in_,
        )
