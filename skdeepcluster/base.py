"""DeepClusterer: the scikit-learn contract of all methods, written once."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
    _fit_context,
    clone,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.utils import ClassifierTags
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ._validation import (
    ImageShape,
    check_device,
    check_rows,
    draw_seeds,
    fitting,
    n_distinct_rows,
)
from .augment import Change, check_augment
from .autoencoder import (
    TRAINING_CONSTRAINTS,
    Autoencoder,
    auto_batch_size,
    auto_epochs,
    check_optimizer,
    seed_noise,
)
from .graph import NeighborGraph
from .initial import graph_of, initial_labels
from .objective import JointLoss, Objective
from .training import ClusteringPhase, Trainer, encode, training_dtype

# Optimiser steps of joint training that max_epochs="auto" aims at, and the epochs it keeps to.
_AUTO_STEPS = 2_000
_AUTO_EPOCHS = (16, 100)


class DeepClusterer(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator, ABC
):
    """Pretrain an autoencoder, cluster its embedding, train both jointly, assign.

    A method adds its parameters, its :class:`~skdeepcluster.objective.Objective`, and what a
    fitted estimator keeps of it.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "autoencoder": [Autoencoder, FrozenEstimator, None],
        "init": [StrOptions({"auto", "graph", "k-means"}), HasMethods("fit_predict"), "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, 1, closed="both")],
        **TRAINING_CONSTRAINTS,
    }

    # Parameters that every method stores.
    n_clusters: int
    autoencoder: Autoencoder | FrozenEstimator | None
    init: Any
    n_init: int
    tol: float
    max_epochs: str | int
    batch_size: str | int
    lr: float
    optimizer: str | Callable[..., torch.optim.Optimizer]
    augment: str | Change | None
    precision: str
    device: str | torch.device
    compile: bool
    memory: Any
    callbacks: Sequence[Any] | None
    verbose: int
    random_state: int | np.random.RandomState | None

    @abstractmethod
    def _start(self, z: Tensor, labels: Tensor | None, seed: int, max_epochs: int) -> Objective:
        """Make the objective and start it from embeddings and their initial labels.

        Labels are None where the method starts from scratch.
        """

    # Typed loosely: each method keeps its own kind of objective.
    @abstractmethod
    def _keep(self, objective: Any, z: Tensor) -> int:
        """Set the fitted attributes from the objective; says how many clusters were re-seeded."""

    @abstractmethod
    def _fitted_objective(self) -> Objective:
        """The objective as the fitted attributes describe it, on the CPU."""

    def _check_method(self, autoencoder: Autoencoder) -> None:
        """Refuse what the method cannot train: a network, or parameters beyond their types."""

    def _default_autoencoder(self) -> Autoencoder:
        """What ``autoencoder=None`` stands for."""
        return Autoencoder()

    def _from_scratch(self) -> bool:
        """Whether the method starts from an untrained network and without initial clustering."""
        return False

    def _joint_epochs(self, n_samples: int, batch_size: int) -> int:
        """The number that ``max_epochs`` stands for."""
        return auto_epochs(
            self.max_epochs, n_samples, batch_size, steps=_AUTO_STEPS, bounds=_AUTO_EPOCHS
        )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> DeepClusterer:
        """Train the network and cluster.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Numbers of any type: float, int, uint8, bool; a DataFrame; a sparse matrix, of which
            only a batch at a time is made dense; images as (n, height, width), or
            four-dimensional with an autoencoder that knows their ``image_shape``. Not changed.
        y : Ignored
            Present for scikit-learn's sake.

        Returns
        -------
        object
            The fitted clusterer itself.

        Raises
        ------
        ValueError
            If X or a parameter is unfit, before any training; if training diverges.

        Warns
        -----
        ConvergenceWarning
            If fewer than ``n_clusters`` clusters could be filled.
        """
        with fitting(self):
            X, image_shape, autoencoder, init, device = self._check_before_fit(X)
            seeds = draw_seeds(self.random_state, 4)
            n_distinct = n_distinct_rows(X, self.n_clusters)
            if n_distinct < self.n_clusters:
                warnings.warn(
                    f"X has {n_distinct} distinct rows, fewer than n_clusters="
                    f"{self.n_clusters}: some clusters will be empty.",
                    ConvergenceWarning,
                    stacklevel=3,
                )
            return self._fit(X, image_shape, autoencoder, init, device, *seeds)

    def predict(self, X: Any) -> np.ndarray:
        """Assign samples to clusters.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels, int32: the most probable cluster.
        """
        z = self._encode(X)
        return self._labels(z)

    def transform(self, X: Any) -> np.ndarray:
        """Embed samples.

        The distances to the clusters are
        ``euclidean_distances(est.transform(X), est.cluster_centers_)``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Embeddings: float64 for float64 and for integers of 32 bits or more, else float32. The
            network is evaluated in that precision.
        """
        return self._encode(X).numpy()

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Decode embeddings, such as the prototypes, into the units of the data.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Embeddings, for example ``cluster_centers_``.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Reconstructions, flat also for images; float32 for float32 input, else float64.
        """
        check_is_fitted(self)
        return self.autoencoder_.inverse_transform(Z)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the objective on X, per sample; higher is better.

        All terms of the training loss after an E-step that leaves the prototypes as they are,
        without noise. Values for different settings of the loss's weights do not compare, and
        the best one is not the best clustering: the objective is no guide for choosing them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.
        y : Ignored
            Present for scikit-learn's sake.

        Returns
        -------
        float
            Minus the objective.
        """
        check_is_fitted(self)
        X = check_rows(self, self.autoencoder_._as_rows(X), reset=False)
        z = self.autoencoder_._encode(X)
        return -self._total_loss(z, self.autoencoder_._reconstruction_error(X))

    def _check_before_fit(
        self, X: Any
    ) -> tuple[np.ndarray, ImageShape | None, Autoencoder, Any, torch.device]:
        """Refuse whatever can be refused before training."""
        device = check_device(self.device)
        check_optimizer(self.optimizer)
        X, image_shape, autoencoder = self._check_fit(X)
        return X, image_shape, autoencoder, self._check_init(X.shape[0]), device

    def _check_fit(self, X: Any) -> tuple[np.ndarray, ImageShape | None, Autoencoder]:
        """Validate X and the network it goes through; the user's network is copied."""
        given = self._given_autoencoder()
        if isinstance(given, FrozenEstimator):
            if not isinstance(given.estimator, Autoencoder):
                raise ValueError(
                    f"autoencoder={given!r} must freeze an Autoencoder, "
                    f"not a {type(given.estimator).__name__}."
                )
            check_is_fitted(given.estimator)
            autoencoder = copy.deepcopy(given.estimator)
            given.estimator._check_rows(X)
            X = check_rows(self, given.estimator._as_rows(X), reset=True)
            image_shape = autoencoder.image_shape_
        else:
            autoencoder = clone(given)
            autoencoder._validate_params()
            X, image_shape = autoencoder._check_fit(X, self)
            autoencoder.n_features_in_ = self.n_features_in_
            if hasattr(self, "feature_names_in_"):
                autoencoder.feature_names_in_ = self.feature_names_in_
        check_augment(self.augment, image_shape)
        self._check_method(autoencoder)
        if X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        return X, image_shape, autoencoder

    def _given_autoencoder(self) -> Autoencoder | FrozenEstimator:
        """The parameter, or its default."""
        return self._default_autoencoder() if self.autoencoder is None else self.autoencoder

    def _pretraining(self) -> Autoencoder | FrozenEstimator:
        """The pretraining of a fit as an estimator of its own, or the network that needs none."""
        given = self._given_autoencoder()
        if isinstance(given, FrozenEstimator):
            return given
        return self._inherit(clone(given), draw_seeds(self.random_state, 4)[0])

    def _inherit(self, autoencoder: Autoencoder, seed: int) -> Autoencoder:
        """Set what is at its default there to what it is here."""
        if autoencoder.memory is None:
            autoencoder.memory = self.memory
        if autoencoder.random_state is None:
            autoencoder.random_state = seed
            if not isinstance(self.random_state, Integral):
                # Nobody will draw that seed again.
                autoencoder.memory = None
        if autoencoder.augment is None:
            autoencoder.augment = self.augment
        if autoencoder.precision == "float32":
            autoencoder.precision = self.precision
        autoencoder.compile = autoencoder.compile or self.compile
        if autoencoder.device == "auto":
            autoencoder.device = self.device
        autoencoder.verbose = autoencoder.verbose or self.verbose
        return autoencoder

    def _check_init(self, n_samples: int) -> Any:
        """``init`` as labels where it is an array, else as it is."""
        if isinstance(self.init, str):
            return self.init
        if hasattr(self.init, "fit_predict"):
            if isinstance(self.init, type) or not hasattr(self.init, "get_params"):
                raise ValueError(
                    f"init={self.init!r} must be an instance of a scikit-learn clusterer."
                )
            return self.init
        init = np.asarray(self.init)
        if init.shape != (n_samples,):
            raise ValueError(
                f"init has shape {init.shape}; labels must have shape ({n_samples},), "
                "one per sample."
            )
        found, labels = np.unique(init, return_inverse=True)
        if len(found) != self.n_clusters:
            raise ValueError(
                f"init has {len(found)} distinct labels, but n_clusters={self.n_clusters}."
            )
        return labels

    def _fit(
        self,
        X: np.ndarray,
        image_shape: ImageShape | None,
        autoencoder: Autoencoder,
        init: Any,
        device: torch.device,
        pretraining_seed: int,
        init_seed: int,
        order_seed: int,
        noise_seed: int,
    ) -> DeepClusterer:
        """Run the phases on validated rows, then set the fitted attributes."""
        history: list[dict[str, Any]] = []
        from_scratch = self._from_scratch()
        if not isinstance(self.autoencoder, FrozenEstimator):
            self._inherit(autoencoder, pretraining_seed)
            device_of_pretraining = check_device(autoencoder.device)
            autoencoder._fit(X, image_shape, device_of_pretraining, untrained=from_scratch)
            history += [dict(row) for row in autoencoder.history_]
        network = autoencoder.module_.to(device)
        rows = autoencoder._rows(X, device)

        batch_size = auto_batch_size(self.batch_size, len(rows))
        max_epochs = self._joint_epochs(len(rows), batch_size)
        z = encode(network, rows)
        labels: Tensor | None = None
        graph: NeighborGraph | None = None
        if not from_scratch:
            points = z.cpu().numpy()
            graph = graph_of(points, self.n_clusters, init_seed)
            found = initial_labels(points, graph, init, self.n_clusters, self.n_init, init_seed)
            del points
            labels = torch.from_numpy(found).to(device)
        with torch.no_grad():
            objective = self._start(z, labels, init_seed, max_epochs).to(device)
            if labels is None:
                labels = objective.log_posterior(z).argmax(dim=1)
        # Every epoch has embeddings of its own.
        del z

        seed_noise(network, noise_seed, device)
        trainer = Trainer(
            JointLoss(
                network,
                objective,
                augmentation=autoencoder._augmentation(self.augment, noise_seed, device),
                dtype=training_dtype(self.precision, device, network),
            ),
            optimizer=self.optimizer,
            lr=self.lr,
            batch_size=batch_size,
            order=torch.Generator().manual_seed(order_seed),
            device=device,
            compile=self.compile,
            callbacks=self.callbacks,
            after_epoch=ClusteringPhase(
                network,
                objective,
                rows,
                labels,
                graph,
                self.n_clusters,
                tol=self.tol,
                max_epochs=max_epochs,
            ),
            verbose=self.verbose,
        )
        self.stop_reason_ = trainer.train(rows, max_epochs)
        network.eval()
        if from_scratch and autoencoder._is_dead(rows):
            raise ValueError(
                f"The network died in training with lr={self.lr:g}: all samples have the same "
                "embedding. Use a smaller lr, or a smaller weight of the clustering loss."
            )

        joint = trainer.rows_of_history()
        self.n_iter_ = len(joint)
        self.converged_ = self.stop_reason_ == "tol"
        self.autoencoder_ = autoencoder
        self._n_features_out = autoencoder._n_features_out
        embedding = autoencoder._encode(X)
        n_reseeded = self._keep(objective, embedding)
        if joint:
            joint[-1]["n_reseeded"] += n_reseeded
        self.history_ = [*history, *joint]
        self.labels_ = self._labels(embedding)
        autoencoder.reconstruction_error_ = autoencoder._reconstruction_error(X)
        self.objective_ = self._total_loss(embedding, autoencoder.reconstruction_error_)
        n_found = len(np.unique(self.labels_))
        if n_found < self.n_clusters:
            warnings.warn(
                f"Only {n_found} of n_clusters={self.n_clusters} clusters have samples: the "
                "embedding does not hold more groups. Use fewer clusters.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return self

    def _encode(self, X: Any) -> Tensor:
        """Embeddings of the user's X."""
        check_is_fitted(self)
        X = check_rows(self, self.autoencoder_._as_rows(X), reset=False)
        return self.autoencoder_._encode(X)

    def _total_loss(self, z: Tensor, reconstruction: float) -> float:
        """Clustering loss and weighted reconstruction loss, per sample, without noise."""
        objective = self._fitted_objective()
        return objective.energy(z) + objective.reconstruction_weight * reconstruction

    def _labels(self, z: Tensor) -> np.ndarray:
        """Labels of embeddings."""
        return self._fitted_objective().log_posterior(z).argmax(dim=1).numpy().astype(np.int32)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class PosteriorMixin:
    """``predict_proba``, for the methods whose assignments are soft."""

    def predict_proba(self: Any, X: Any) -> np.ndarray:
        """Probabilities of the clusters for each sample; the label is the most probable one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
            Probabilities, float64; rows sum to 1. The formula is in the class's description.
        """
        z = self._encode(X)
        return self._fitted_objective().log_posterior(z).exp().numpy()

    def __sklearn_tags__(self: Any):
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        # scikit-learn's check of sparse input looks here for the columns of predict_proba.
        tags.classifier_tags = ClassifierTags(multi_class=self.n_clusters != 2)
        return tags
