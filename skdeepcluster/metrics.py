"""Scores of a clustering: with true classes, and without any labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import silhouette_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.utils import check_consistent_length, column_or_1d

# Samples that the silhouette is taken of: its cost grows with their square.
_SILHOUETTE_SAMPLES = 2_000


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

    Parameters
    ----------
    estimator : object with ``predict``
        A fitted clusterer, or a Pipeline that ends in one.
    X : array-like of shape (n_samples, n_features), or images
        What the estimator takes. Of more than 2,000 samples, 2,000 drawn once and for all are
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
    labels = np.asarray(estimator.predict(X))
    rows = np.asarray(X).reshape(len(labels), -1)
    some = np.random.RandomState(0).permutation(len(labels))[:_SILHOUETTE_SAMPLES]
    n_found = len(np.unique(labels[some]))
    if not 1 < n_found < len(some):
        return -1.0
    return float(silhouette_score(rows[some], labels[some]))
