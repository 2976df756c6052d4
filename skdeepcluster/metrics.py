"""Scores of a clustering: with true classes, and without any labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import silhouette_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_consistent_length, column_or_1d

# Samples that the scores without labels look at: their cost grows with the square.
_SAMPLES = 5_000

_N_NEIGHBORS = 10


def clustering_accuracy(y_true: Any, y_pred: Any) -> float:
    r"""Share of samples that are right under the best matching of clusters with classes.

    :math:`\mathrm{ACC} = \max_\pi \frac1N \sum_i 1[y_i = \pi(\hat y_i)]` over all one-to-one
    maps :math:`\pi` from clusters to classes, found by the Hungarian method. Where there are
    more clusters than classes, the samples of clusters left without a class count as wrong;
    where there are fewer, those of the classes left without a cluster do.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Classes: integers, strings or anything else that can be sorted.
    y_pred : array-like of shape (n_samples,)
        Cluster labels; their numbering does not matter.

    Returns
    -------
    float
        Accuracy between 0 and 1.

    Raises
    ------
    ValueError
        If the inputs are empty, differ in length, or are not one-dimensional.

    Examples
    --------
    >>> from skdeepcluster import clustering_accuracy
    >>> clustering_accuracy(["a", "a", "b", "b"], [1, 1, 0, 1])
    0.75
    """
    y_true, y_pred = column_or_1d(y_true), column_or_1d(y_pred)
    check_consistent_length(y_true, y_pred)
    if len(y_true) == 0:
        raise ValueError("Found array with 0 sample(s), while a minimum of 1 is required.")
    counts = contingency_matrix(y_true, y_pred)
    classes, clusters = linear_sum_assignment(counts, maximize=True)
    return float(counts[classes, clusters].sum() / len(y_true))


def input_silhouette(estimator: Any, X: Any, y: Any = None) -> float:
    """Silhouette of a fitted clusterer's labels in the space of its input; needs no classes.

    For ``GridSearchCV(..., scoring=input_silhouette)``. The input is the same for all candidates
    of a grid. In the embedding they do not compare: each has its own, and the silhouette there
    (like every loss of the methods) is best for the one that has forced its data into points.
    The silhouette likes round clusters; see :func:`neighbor_agreement` for clusters of any form.

    Parameters
    ----------
    estimator : object with ``predict``
        A fitted clusterer, or a Pipeline that ends in one. A Pipeline's input is what counts,
        before its transformers.
    X : array-like of shape (n_samples, n_features), or images
        What the estimator takes. Of more than 5,000 samples, 5,000 drawn once and for all are
        looked at.
    y : Ignored
        Present for scikit-learn's sake.

    Returns
    -------
    float
        Mean silhouette between -1 and 1; higher is better. -1 where all samples are in one
        cluster, or every one in its own.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import input_silhouette
    >>> X = load_iris().data
    >>> round(input_silhouette(KMeans(2, n_init=1, random_state=0).fit(X), X), 2)
    0.68
    """
    rows, labels = _some_labelled_rows(estimator, X)
    if not 1 < len(np.unique(labels)) < len(labels):
        return -1.0
    return float(silhouette_score(rows, labels))


def neighbor_agreement(estimator: Any, X: Any, y: Any = None) -> float:
    r"""How often neighbours in the input share a cluster, beyond chance; needs no classes.

    With a the share of the pairs of a sample and one of its 10 nearest neighbours that have the
    same label, and :math:`c = \sum_k s_k^2` what labels drawn with the clusters' shares
    :math:`s_k` would have, it is :math:`(a - c) / (1 - c)`. Clusters may have any form, but their
    borders must not cross dense regions. For the choice between models with the same number of
    clusters; fewer clusters have fewer borders.

    Parameters
    ----------
    estimator : object with ``predict``
        A fitted clusterer, or a Pipeline that ends in one. A Pipeline's input is what counts,
        before its transformers.
    X : array-like of shape (n_samples, n_features), or images
        What the estimator takes. Of more than 5,000 samples, 5,000 drawn once and for all are
        looked at, as if they were all.
    y : Ignored
        Present for scikit-learn's sake.

    Returns
    -------
    float
        1 where all neighbours agree, 0 for chance, and for a single cluster.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import neighbor_agreement
    >>> X = load_iris().data
    >>> round(neighbor_agreement(KMeans(3, n_init=1, random_state=0).fit(X), X), 2)
    0.95
    """
    rows, labels = _some_labelled_rows(estimator, X)
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    chance = float(np.square(shares).sum())
    if len(shares) == 1:
        return 0.0
    n_neighbors = min(_N_NEIGHBORS, len(labels) - 1)
    neighbors = NearestNeighbors(n_neighbors=n_neighbors).fit(rows).kneighbors()[1]
    agreement = float((labels[neighbors] == labels[:, None]).mean())
    return (agreement - chance) / (1 - chance)


def _some_labelled_rows(estimator: Any, X: Any) -> tuple[Any, np.ndarray]:
    """Flat rows and their labels: all of them, or the same part of them each time."""
    labels = np.asarray(estimator.predict(X))
    some = np.random.RandomState(0).permutation(len(labels))[:_SAMPLES]
    rows = X.tocsr() if scipy.sparse.issparse(X) else np.asarray(X).reshape(len(labels), -1)
    return rows[some], labels[some]
