"""DEPICT: relative entropy to targets of balanced cluster sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .augment import Change
from .autoencoder import Autoencoder
from .base import DeepClusterer
from .information import entropy, kl_divergence
from .logistic import LogisticClusterer, LogisticObjective
from .targets import dec_target, depict_target


class BalancedDivergence(LogisticObjective):
    r"""DEPICT's :math:`KL(Q \| P) + \gamma \sum_k \hat q_k \log \hat q_k`; by DEC without gamma.

    Parameters
    ----------
    coef : Tensor of shape (k, p)
        Weights :math:`\theta`.
    intercept : Tensor of shape (k,)
        Biases b.
    gamma : float
        Weight of the balance of the sizes.
    target : {"depict", "dec"}
        The paper's targets or the official code's.
    """

    def __init__(self, coef: Tensor, intercept: Tensor, *, gamma: float, target: str):
        super().__init__(coef, intercept)
        self.gamma = gamma
        self.target = target

    def _target(self, log_p: Tensor) -> Tensor:
        return dec_target(log_p) if self.target == "dec" else depict_target(log_p, self.gamma)

    def _value(self, log_p: Tensor, targets: Tensor) -> float:
        if self.target == "dec":
            return float(kl_divergence(targets, log_p))
        balance = -self.gamma * entropy(targets.mean(dim=0))
        return float(kl_divergence(targets, log_p) + balance)


class DEPICT(LogisticClusterer):
    r"""Clustering by relative entropy minimisation on a denoising autoencoder (DEPICT).

    A logistic posterior on the embedding,
    :math:`p_{ik} = \mathrm{softmax}_k(\theta_k^\top z_i + b_k)`, is trained towards targets Q whose
    cluster sizes :math:`\hat q_k = \frac1N \sum_i q_{ik}` are balanced:

    .. math:: \min_{P, Q} \; KL(Q \| P) + \gamma \sum_k \hat q_k \log \hat q_k + R

    with the reconstruction loss R of :class:`Autoencoder` (Ghasedi Dizaji et al. 2017; the weight
    :math:`\gamma` as in Jabi et al. 2021, section 2). Per epoch: a pass of minibatch steps on
    network, weights and biases, whose clustering loss is the cross-entropy
    :math:`-\frac1N \sum_{ik} q_{ik} \log p_{ik}`; clustering and reconstruction share one noisy
    pass. Then the targets, from the posteriors of all samples without noise. The first epochs
    keep the initial labels as targets, until the model agrees with them.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters K.
    gamma : float, default=1.0
        The :math:`\gamma`: weight of the balance of the cluster sizes. 1 is the published
        exponent 1/2 of ``target="depict"``; "dec" has none.
    target : {"depict", "dec"}, default="depict"
        The target step. "depict" is the paper's
        :math:`q_{ik} \propto p_{ik} / (\sum_j p_{jk})^{\gamma / (1 + \gamma)}`, which balances
        the sizes but does not sharpen. "dec" is what the official code runs,
        :math:`q_{ik} \propto p_{ik}^2 / \sum_j p_{jk}`: it never lowers the mutual information,
        and the objective is the relative entropy to it alone, without gamma.
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
        in 16 to 100 epochs. The official code trains up to 1,000 epochs for the
        warm-up and 4,000 after, at a tenth of this learning rate.
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
    MIADM : The same objective at gamma = 1/2 plus half of the entropy of Q (Proposition 1).
    IDEC : Its "dec" target with prototypes instead of a logistic posterior.

    Notes
    -----
    The exact minimiser over Q solves :math:`q_{ik} \propto p_{ik} \hat q_k^{-\gamma}`; the closed
    form leaves out the normalisers of the rows.

    Should a cluster have no samples at the end, weights and biases are replaced by those whose
    labels are the nearest means, with the empty clusters' means moved to the samples that are
    worst represented.

    Cost per epoch: one pass of training and one of the encoder, and O(N K p) for the targets.

    References
    ----------
    K. Ghasedi Dizaji, A. Herandi, C. Deng, W. Cai, H. Huang, "Deep clustering via joint
    convolutional autoencoder embedding and relative entropy minimization", ICCV 2017.

    M. Jabi, M. Pedersoli, A. Mitiche, I. Ben Ayed, "Deep clustering: On the link between
    discriminative models and K-means", IEEE TPAMI 43(6), 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import DEPICT
    >>> X = load_iris().data
    >>> model = DEPICT(n_clusters=3, max_epochs=10, random_state=0).fit(X)
    >>> model.predict(X[:5]).shape
    (5,)
    >>> model.predict_proba(X[:5]).shape
    (5, 3)
    """

    _objective = BalancedDivergence

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **DeepClusterer._parameter_constraints,
        "gamma": [Interval(Real, 0, None, closed="left")],
        "target": [StrOptions({"depict", "dec"})],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        gamma: float = 1.0,
        target: str = "depict",
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
        self.gamma = gamma
        self.target = target
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
        return {"gamma": self.gamma, "target": self.target}
