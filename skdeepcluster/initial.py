"""The initial clustering of the embedding: where most of the final quality comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import Pipeline

from ._validation import draw_seeds
from .graph import NeighborGraph, graph_clustering

# From this many samples on, init="auto" trusts the neighbour graph.
_ENOUGH_FOR_A_GRAPH = 500

# A graph of fewer samples, or of fewer than twice the clusters, says nothing.
_FEWEST_FOR_A_GRAPH = 30


def graph_of(z: np.ndarray, n_clusters: int, seed: int) -> NeighborGraph | None:
    """The neighbour graph of embeddings, unless it would say nothing about that many clusters."""
    too_few = len(z) < max(2 * n_clusters, _FEWEST_FOR_A_GRAPH)
    return None if n_clusters == 1 or too_few else NeighborGraph(z, seed)


def initial_labels(
    z: np.ndarray,
    graph: NeighborGraph | None,
    init: Any,
    n_clusters: int,
    n_init: int,
    seed: int,
) -> np.ndarray:
    """Cluster embeddings as the parameter ``init`` says.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings.
    graph : NeighborGraph or None
        Their graph, see :func:`graph_of`; without one, k-means takes the place of "graph".
    init : {"auto", "graph", "k-means"}, clusterer, or ndarray of shape (n,)
        See the clusterers.
    n_clusters : int
        Number of clusters.
    n_init : int
        Restarts of k-means.
    seed : int
        Random seed.

    Returns
    -------
    ndarray of shape (n,)
        Labels from 0 to n_clusters - 1, int64.

    Raises
    ------
    ValueError
        If a clusterer finds another number of clusters.
    """
    if isinstance(init, np.ndarray):
        return init
    if isinstance(init, str):
        if init == "auto":
            init = "graph" if len(z) >= _ENOUGH_FOR_A_GRAPH else "k-means"
        if init == "k-means" or graph is None:
            return _k_means(z, n_clusters, n_init, seed)
        return graph_clustering(z, n_clusters, n_init, seed, graph)
    return _by_clusterer(z, init, n_clusters, seed)


def _k_means(z: np.ndarray, n_clusters: int, n_init: int, seed: int) -> np.ndarray:
    """Labels by k-means, int64."""
    k_means = KMeans(n_clusters, n_init=n_init, random_state=seed)
    return k_means.fit_predict(z).astype(np.int64)


def _by_clusterer(z: np.ndarray, init: Any, n_clusters: int, seed: int) -> np.ndarray:
    """Labels by a copy of the user's clusterer; its noise joins the nearest mean."""
    clusterer = clone(init)
    last = clusterer[-1] if isinstance(clusterer, Pipeline) else clusterer
    if isinstance(last, GaussianMixture | BayesianGaussianMixture):
        last.set_params(n_components=n_clusters)
    elif "n_clusters" in last.get_params():
        last.set_params(n_clusters=n_clusters)
    unseeded = [
        name
        for name, value in clusterer.get_params().items()
        if name.split("__")[-1] == "random_state" and value is None
    ]
    clusterer.set_params(**dict(zip(unseeded, draw_seeds(seed, len(unseeded)), strict=True)))

    found = np.array(clusterer.fit_predict(z))
    clear = found >= 0
    names, labels = np.unique(found[clear], return_inverse=True)
    if len(names) != n_clusters:
        raise ValueError(
            f"init={init!r} found {len(names)} clusters, but n_clusters={n_clusters}. Use another "
            "init, or other parameters of it."
        )
    if clear.all():
        return labels.astype(np.int64)
    return NearestCentroid().fit(z[clear], labels).predict(z).astype(np.int64)
