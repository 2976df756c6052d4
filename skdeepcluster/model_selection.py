"""Choosing a model where there are no labels to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Bunch

from .base import DeepClusterer
from .metrics import input_silhouette


class SingleFit:
    """The split that is none: fit on all samples and score on the same.

    A clusterer has no labels to overfit to, so a grid search over clusterings needs no
    held-out part: ``GridSearchCV(model, grid, scoring=input_silhouette, cv=SingleFit())`` fits
    once per candidate, on all of the data. The best one is fitted once more at the end
    (``refit=True``): give the clusterer an int as random_state, or that is another fit.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skdeepcluster import SingleFit, input_silhouette
    >>> k_means = KMeans(n_init=1, random_state=0)
    >>> grid = {"n_clusters": [2, 3, 4]}
    >>> search = GridSearchCV(k_means, grid, scoring=input_silhouette, cv=SingleFit())
    >>> search.fit(load_iris().data).best_params_
    {'n_clusters': 2}
    """

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the one pair of training and test indices, both of them all.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        y, groups : Ignored
            Present for scikit-learn's sake.

        Yields
        ------
        tuple of two ndarrays of shape (n_samples,)
            Indices of all samples, twice.
        """
        everything = np.arange(X.shape[0] if hasattr(X, "shape") else len(X))
        yield everything, everything

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """One.

        Parameters
        ----------
        X, y, groups : Ignored
            Present for scikit-learn's sake.

        Returns
        -------
        int
            1.
        """
        return 1


def scan_n_clusters(
    clusterer: DeepClusterer,
    X: Any,
    n_clusters: Iterable[int],
    *,
    scoring: Callable[[Any, Any], float] = input_silhouette,
) -> Bunch:
    """Fit a clusterer for several numbers of clusters, all from one pretrained network.

    A guide to the number of clusters where nothing is known of it: plot ``score`` over
    ``n_clusters`` and look for peaks, and beside it whether the smallest cluster is still one.
    A silhouette prefers few, round clusters; it is a guide and no judge.

    Parameters
    ----------
    clusterer : SRKMeans, MIADM, DEPICT, DeepKMeans, DCN or IDEC
        What is fitted, a copy for each number; the given one is not fitted itself. Its
        ``autoencoder`` is pretrained once, with the clusterer's random_state, device, memory
        and verbose where it has none of its own, or taken as it is if frozen. Only
        ``DeepKMeans(alpha="anneal")`` starts each fit from scratch.
    X : array-like of shape (n_samples, n_features), or images
        Samples.
    n_clusters : iterable of int
        Numbers of clusters to try; checked before anything is trained.
    scoring : callable, default=input_silhouette
        Score of a fitted clusterer, ``scoring(clusterer, X)``.

    Returns
    -------
    Bunch
        The plot's data, a column each, so that ``pandas.DataFrame(scan)`` is a table:
        ``n_clusters``, ``score``, ``smallest_cluster`` (samples), ``n_iter`` (joint epochs).

    Raises
    ------
    ValueError
        If X or a parameter is unfit, or there is nothing to try.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from skdeepcluster import SRKMeans, scan_n_clusters
    >>> X, _ = make_blobs(200, 8, centers=4, random_state=0)
    >>> scan = scan_n_clusters(SRKMeans(random_state=0), X, [3, 4, 5])
    >>> int(scan.n_clusters[scan.score.argmax()])
    4
    """
    models = [clone(clusterer).set_params(n_clusters=k) for k in n_clusters]
    if not models:
        raise ValueError("n_clusters is empty; give the numbers of clusters to try.")
    for model in models:
        model._validate_params()
        model._check_before_fit(X)
    if not clusterer._from_scratch():
        autoencoder = clusterer._pretraining()
        if not isinstance(autoencoder, FrozenEstimator):
            autoencoder = FrozenEstimator(autoencoder.fit(X))
        for model in models:
            model.set_params(autoencoder=autoencoder)
    table: dict[str, list[Any]] = {
        "n_clusters": [],
        "score": [],
        "smallest_cluster": [],
        "n_iter": [],
    }
    for model in models:
        sizes = np.bincount(model.fit(X).labels_, minlength=model.n_clusters)
        table["n_clusters"].append(model.n_clusters)
        table["score"].append(scoring(model, X))
        table["smallest_cluster"].append(int(sizes.min()))
        table["n_iter"].append(model.n_iter_)
    return Bunch(**{name: np.array(values) for name, values in table.items()})
