"""Scores of a clustering."""

from __future__ import annotations

from typing import Any

from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix
from sklearn.utils import check_consistent_length, column_or_1d


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
