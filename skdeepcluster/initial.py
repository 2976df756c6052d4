"""The initial clustering of the embedding: where most of the final quality comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import eigsh
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid, NearestNeighbors
from sklearn.pipeline import Pipeline

from ._validation import draw_seeds

# From this many samples on, init="auto" trusts the neighbour graph.
_ENOUGH_FOR_A_GRAPH = 500

# The graph is built on so many samples; the others follow their nearest neighbours.
_GRAPH_SAMPLES = 20_000

# Neighbours in the graph, steps of the diffusion, eigenvectors that are looked at (at least).
_N_NEIGHBORS, _N_STEPS, _N_EIGENVECTORS = 10, 10, 30


def initial_labels(z: np.ndarray, init: Any, n_clusters: int, n_init: int, seed: int) -> np.ndarray:
    """Cluster embeddings as the parameter ``init`` says.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings.
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
        # A graph of hardly more samples than neighbours, or than clusters, says nothing.
        if init == "k-means" or n_clusters == 1 or len(z) < max(2 * n_clusters, 3 * _N_NEIGHBORS):
            return _k_means(z, n_clusters, n_init, seed)
        return graph_clustering(z, n_clusters, n_init, seed)
    return _by_clusterer(z, init, n_clusters, seed)


def graph_clustering(z: np.ndarray, n_clusters: int, n_init: int, seed: int) -> np.ndarray:
    r"""Cluster the diffusion map of the nearest neighbour graph by k-means.

    Each sample is linked to its 10 nearest neighbours with weight
    :math:`\exp(-\|z_i - z_j\|^2 / (\sigma_i \sigma_j))`, where :math:`\sigma_i` is its distance
    to the last of them. The coordinates are the leading eigenvectors of the random walk on that
    graph, times their eigenvalues to the 10th power: samples are close if walks of 10 steps from
    them end alike. So a group may be any dense region, where k-means on z wants balls of one size.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings. Of more than 20,000, a random part of 20,000 is clustered, and every sample
        takes the label of the majority of its neighbours in that.
    n_clusters, n_init, seed : int
        Number of clusters, restarts of k-means, random seed.

    Returns
    -------
    ndarray of shape (n,)
        Labels, int64.
    """
    random_state = np.random.RandomState(seed)
    some = random_state.permutation(len(z))[:_GRAPH_SAMPLES]
    coordinates = _diffusion_map(z[some], n_clusters, random_state)
    labels = _k_means(coordinates, n_clusters, n_init, seed)
    if len(some) == len(z):
        return labels[np.argsort(some)]
    return KNeighborsClassifier(_N_NEIGHBORS).fit(z[some], labels).predict(z)


def _diffusion_map(
    z: np.ndarray, n_clusters: int, random_state: np.random.RandomState
) -> np.ndarray:
    """Coordinates (n, m) of the random walk on the neighbour graph."""
    n = len(z)
    n_neighbors = min(_N_NEIGHBORS, n - 1)
    distances, neighbors = NearestNeighbors(n_neighbors=n_neighbors).fit(z).kneighbors()
    scale = distances[:, -1:].astype(np.float64)
    # Where all neighbours are copies of a sample its scale is 0, and so would be its links to
    # others, and theirs to it: no link weighs nothing.
    scale = np.maximum(scale, 1e-3 * np.median(scale[scale > 0])) if scale.any() else scale + 1
    weights = np.exp(-np.square(distances) / (scale * scale[neighbors][:, :, 0]))
    weights = np.maximum(weights, np.finfo(np.float32).eps)
    rows = np.repeat(np.arange(n), n_neighbors)
    graph = scipy.sparse.csr_matrix((weights.ravel(), (rows, neighbors.ravel())), shape=(n, n))
    graph = graph.maximum(graph.T)

    degree = np.sqrt(np.asarray(graph.sum(axis=1)).ravel())
    symmetric = scipy.sparse.diags(1 / degree) @ graph @ scipy.sparse.diags(1 / degree)
    n_eigenvectors = min(max(_N_EIGENVECTORS, n_clusters + 1), n - 1)
    start = random_state.uniform(-1, 1, n)
    values, vectors = eigsh(symmetric, k=n_eigenvectors, which="LA", v0=start)
    order = np.argsort(-values)
    walk = vectors[:, order] / degree[:, None]
    # The first one is constant.
    return (walk * np.clip(values[order], 0, 1) ** _N_STEPS)[:, 1:]


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
