"""Clusters of the nearest neighbour graph: the initial clustering ``init="graph"``."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch.optim.lr_scheduler import CosineAnnealingLR

# The graph is built on so many samples; the others follow their nearest neighbours.
_GRAPH_SAMPLES = 50_000

# Neighbours in the graph.
_N_NEIGHBORS = 10

# Neighbour embeddings that are tried, their dimensions, and their optimiser's steps.
_N_EMBEDDINGS, _N_DIMENSIONS, _N_STEPS, _STEP = 3, 10, 300, 0.5

# Non-neighbours that push a sample away for each that pulls it, and how many are drawn a step.
_REPULSION, _N_DRAWN = 10.0, 200

# Sweeps of moving samples to other clusters, at most.
_N_SWEEPS = 30


class NeighborGraph:
    """The nearest neighbour graph of some samples.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings of all samples.
    seed : int
        Draws 50,000 of them, if there are more.

    Attributes
    ----------
    some : ndarray of shape (m,)
        Which samples are in the graph, in random order.
    links : csr_matrix of shape (m, m)
        See :func:`neighbor_graph`.
    """

    def __init__(self, z: np.ndarray, seed: int):
        self.some = np.random.RandomState(seed).permutation(len(z))[:_GRAPH_SAMPLES]
        self.links = neighbor_graph(z[self.some].astype(np.float32))

    def modularity(self, labels: np.ndarray) -> float:
        """:func:`modularity` of labels of all samples, on those that are in the graph."""
        return modularity(self.links, labels[self.some])


def graph_clustering(
    z: np.ndarray, n_clusters: int, n_init: int, seed: int, graph: NeighborGraph | None = None
) -> np.ndarray:
    """Find the clusters that the nearest neighbour graph holds together best.

    A neighbour embedding pulls linked samples together and pushes others apart, so that dense
    regions of any shape become compact groups, which k-means finds. It starts several times, from
    several embeddings; the clustering with the highest :func:`modularity` is kept, and its
    samples are moved between clusters as long as that rises.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings. Of more than 50,000, a random part of 50,000 is clustered, and every sample
        takes the label of the majority of its neighbours in that.
    n_clusters : int
        Number of clusters.
    n_init : int
        Starts of k-means on each of 3 neighbour embeddings.
    seed : int
        Random seed.
    graph : NeighborGraph or None
        Of z, where it is there already.

    Returns
    -------
    ndarray of shape (n,)
        Labels, int64.
    """
    random_state = np.random.RandomState(seed)
    graph = graph or NeighborGraph(z, seed)
    some, links = graph.some, graph.links
    part = z[some].astype(np.float32)
    candidates = [
        KMeans(n_clusters, n_init=1, random_state=random_state).fit_predict(coordinates)
        for coordinates in (
            neighbor_embedding(part, links, random_state) for _ in range(_N_EMBEDDINGS)
        )
        for _ in range(n_init)
    ]
    best = max(candidates, key=lambda labels: modularity(links, labels))
    labels = refined(links, best, random_state)
    if len(some) == len(z):
        return labels[np.argsort(some)]
    return KNeighborsClassifier(_N_NEIGHBORS).fit(part, labels).predict(z)


def neighbor_graph(z: np.ndarray) -> scipy.sparse.csr_matrix:
    r"""Link samples to their nearest neighbours.

    The weight from i to j is :math:`\exp(-(d_{ij} - \rho_i) / \sigma_i)`, where :math:`\rho_i` is
    the distance to the nearest neighbour, and :math:`\sigma_i` makes the weights of the 10
    neighbours sum to :math:`\log_2 10`: dense and sparse regions are linked alike. The two
    directions a, b of a link are joined to :math:`a + b - ab` (McInnes, Healy and Melville, "UMAP",
    2018).

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Samples.

    Returns
    -------
    csr_matrix of shape (n, n)
        Symmetric weights in (0, 1].
    """
    n = len(z)
    n_neighbors = min(_N_NEIGHBORS, n - 1)
    distances, neighbors = NearestNeighbors(n_neighbors=n_neighbors).fit(z).kneighbors()
    excess = (distances - distances[:, :1]).astype(np.float64)
    # Of copies, or of neighbours that are equally far, no scale has that sum.
    least = 1e-3 * excess.mean() or 1.0
    low, high = np.full((n, 1), least), np.full((n, 1), max(least, 1e3 * excess.max()))
    for _ in range(60):
        scale = np.sqrt(low * high)
        too_wide = np.exp(-excess / scale).sum(axis=1, keepdims=True) > np.log2(n_neighbors)
        low, high = np.where(too_wide, low, scale), np.where(too_wide, scale, high)
    # No link weighs nothing.
    weights = np.maximum(np.exp(-excess / high), np.finfo(np.float32).eps).astype(np.float32)
    rows = np.repeat(np.arange(n), n_neighbors)
    directed = scipy.sparse.csr_matrix((weights.ravel(), (rows, neighbors.ravel())), shape=(n, n))
    return (directed + directed.T - directed.multiply(directed.T)).tocsr()


def neighbor_embedding(
    z: np.ndarray, graph: scipy.sparse.csr_matrix, random_state: np.random.RandomState
) -> np.ndarray:
    r"""Coordinates in which linked samples are near and all others far.

    Minimises

    .. math:: \sum_{ij} w_{ij} \Bigl[ \log(1 + d_{ij}^2)
              - \frac{10}{n} \sum_m \log \frac{d_{im}^2}{1 + d_{im}^2} \Bigr],

    UMAP's loss with the kernel of t-SNE, by Adam. The second sum, over all samples, is estimated
    from 200 of them that are drawn anew for every step. Starts from the principal components.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Samples.
    graph : csr_matrix of shape (n, n)
        Their links w.
    random_state : RandomState
        Draws the start's noise and the samples of every step.

    Returns
    -------
    ndarray of shape (n, 10)
        Coordinates, float32.
    """
    n, p = z.shape
    start = random_state.normal(0, 1e-3, (n, _N_DIMENSIONS))
    n_components = min(n, p, _N_DIMENSIONS)
    components = PCA(n_components, random_state=random_state).fit_transform(z)
    start[:, :n_components] += 10 * components / max(np.abs(components).max(), 1e-30)

    links = np.diff(graph.indptr)
    rows = torch.from_numpy(np.repeat(np.arange(n), links))
    columns = torch.from_numpy(graph.indices)
    weights = torch.from_numpy(graph.data)
    degrees = torch.from_numpy(np.asarray(graph.sum(axis=1)))
    y = torch.from_numpy(start.astype(np.float32))
    optimizer = torch.optim.Adam([y], lr=_STEP, betas=(0.9, 0.99))
    schedule = CosineAnnealingLR(optimizer, _N_STEPS)
    for _ in range(_N_STEPS):
        norms = y.square().sum(dim=1)
        # Attraction, along the links.
        products = (y[rows] * y[columns]).sum(dim=1)
        pull = weights / (1 + (norms[rows] + norms[columns] - 2 * products).clamp_min_(0))
        pulls = scipy.sparse.csr_matrix((pull.numpy(), graph.indices, graph.indptr), (n, n))
        y.grad = torch.from_numpy(np.asarray(pulls.sum(axis=1))) * y
        y.grad -= torch.from_numpy(pulls @ y.numpy())
        # Repulsion, from the drawn ones.
        drawn = torch.from_numpy(random_state.randint(n, size=_N_DRAWN))
        others = y[drawn]
        squares = torch.addmm(norms[:, None] + norms[drawn], y, others.T, alpha=-2).clamp_min_(0)
        push = _REPULSION / _N_DRAWN / ((squares + 0.01) * (squares + 1))
        push[drawn, torch.arange(_N_DRAWN)] = 0
        push *= degrees
        y.grad += push @ others - push.sum(dim=1, keepdim=True) * y
        optimizer.step()
        schedule.step()
    return y.numpy()


def modularity(graph: scipy.sparse.csr_matrix, labels: np.ndarray) -> float:
    r"""Share of the links' weight inside of clusters, less what would be there by chance.

    :math:`\sum_k \bigl[ w_{kk} / w - (v_k / w)^2 \bigr]`, with :math:`w_{kk}` the weight inside
    of cluster k, :math:`v_k` the sum of its samples' degrees, and w the sum of all (Newman and
    Girvan 2004).

    Parameters
    ----------
    graph : csr_matrix of shape (n, n)
        Symmetric weights.
    labels : ndarray of shape (n,)
        Clusters.

    Returns
    -------
    float
        Below 1; 0 for a single cluster.
    """
    members = _members(labels, int(labels.max()) + 1)
    between = (members.T @ graph @ members).toarray().astype(np.float64)
    volumes = between.sum(axis=1) / between.sum()
    return float(np.trace(between) / between.sum() - np.square(volumes).sum())


def refined(
    graph: scipy.sparse.csr_matrix, labels: np.ndarray, random_state: np.random.RandomState
) -> np.ndarray:
    """Move samples to other clusters as long as :func:`modularity` rises.

    Parameters
    ----------
    graph : csr_matrix of shape (n, n)
        Symmetric weights.
    labels : ndarray of shape (n,)
        Clusters, of which none is left empty.
    random_state : RandomState
        Draws which half of the samples may move at a time: two neighbours that moved at once
        could swap places for ever.

    Returns
    -------
    ndarray of shape (n,)
        Labels, int64.
    """
    n, n_clusters = len(labels), int(labels.max()) + 1
    labels = labels.astype(np.int64)
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float64)
    best = modularity(graph, labels)
    for _ in range(_N_SWEEPS):
        members = _members(labels, n_clusters)
        # What each sample's links to a cluster exceed chance by, without the sample itself.
        chance = degrees * (degrees.T @ members - degrees * members.toarray()) / degrees.sum()
        gains = (graph @ members).toarray() - chance
        better = gains.argmax(axis=1)
        moving = (better != labels) & (random_state.uniform(size=n) < 0.5)
        moved = np.where(moving, better, labels)
        value = modularity(graph, moved)
        if not moving.any() or value <= best or len(np.unique(moved)) < n_clusters:
            break
        labels, best = moved, value
    return labels


def _members(labels: np.ndarray, n_clusters: int) -> scipy.sparse.csr_matrix:
    """Indicator matrix (n, k) of labels."""
    n = len(labels)
    ones = np.ones(n, dtype=np.float32)
    return scipy.sparse.csr_matrix((ones, (np.arange(n), labels)), shape=(n, n_clusters))
