"""Clusters of the nearest neighbour graph: the initial clustering ``init="graph"``."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.linalg import lobpcg
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from ._blocks import blocks

# The graph is built on so many samples; the others follow their nearest neighbours.
_GRAPH_SAMPLES = 20_000

# Neighbours in the graph.
_N_NEIGHBORS = 10

# Neighbour embeddings that are tried, their dimensions, and their optimiser's steps.
_N_EMBEDDINGS, _N_DIMENSIONS, _N_STEPS, _STEP = 3, 10, 300, 0.5

# Non-neighbours that push a sample away for each that pulls it, and how many are drawn a step.
_REPULSION, _N_DRAWN = 10.0, 200

# Iterations, precision and spare vectors of the eigensolver.
_N_ITERATIONS, _RESIDUAL, _N_SPARE = 300, 1e-5, 3

# Sweeps of moving samples to other clusters, at most.
_N_SWEEPS = 30


class NeighborGraph:
    """The nearest neighbour graph of some samples.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings of all samples.
    seed : int
        Draws 20,000 of them, if there are more.

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
    several embeddings, and once from the :func:`spectral_embedding`; the clustering with the
    highest :func:`modularity` is kept, and its samples are moved between clusters as long as that
    rises.

    Parameters
    ----------
    z : ndarray of shape (n, p)
        Embeddings. Of more than 20,000, a random part of 20,000 is clustered, and every sample
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
    # Groups that no neighbour embedding makes compact, such as rings.
    spectrum = spectral_embedding(links, n_clusters, random_state)
    k_means = KMeans(n_clusters, n_init=n_init, random_state=random_state)
    candidates.append(k_means.fit_predict(spectrum))
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

    degrees = torch.from_numpy(np.asarray(graph.sum(axis=1)))
    y = torch.from_numpy(start.astype(np.float32))
    y.grad = torch.zeros_like(y)
    optimizer = torch.optim.Adam([y], lr=_STEP, betas=(0.9, 0.99))
    schedule = CosineAnnealingLR(optimizer, _N_STEPS)
    # Some samples at a time: their differences to all they are compared with stay in the cache.
    parts = [(part, graph[part]) for part in blocks(n, _N_DRAWN // 4)]
    for _ in range(_N_STEPS):
        drawn = torch.from_numpy(random_state.randint(n, size=_N_DRAWN))
        for part, links in parts:
            y.grad[part] = _pull(y, links, part) - _push(y, degrees, drawn, part)
        optimizer.step()
        schedule.step()
    return y.numpy()


def _pull(y: Tensor, links: scipy.sparse.csr_matrix, part: slice) -> Tensor:
    """Gradient of the attraction of some samples by those they are linked to."""
    own = y[part]
    counts = torch.from_numpy(np.diff(links.indptr))
    differences = own.repeat_interleave(counts, dim=0) - y[torch.from_numpy(links.indices)]
    pulls = torch.from_numpy(links.data) / (1 + differences.square_().sum(dim=1))
    weights = scipy.sparse.csr_matrix((pulls.numpy(), links.indices, links.indptr), links.shape)
    total = torch.from_numpy(np.asarray(weights.sum(axis=1)))
    return total * own - torch.from_numpy(weights @ y.numpy())


def _push(y: Tensor, degrees: Tensor, drawn: Tensor, part: slice) -> Tensor:
    """Minus the gradient of the repulsion of some samples by the drawn ones."""
    own, others = y[part], y[drawn]
    norms, other_norms = own.square().sum(dim=1, keepdim=True), others.square().sum(dim=1)
    squares = torch.addmm(norms + other_norms, own, others.T, alpha=-2).clamp_min_(0)
    # A sample that was drawn does not push itself: its difference to itself is 0.
    pushes = _REPULSION / _N_DRAWN * degrees[part] / ((squares + 0.01) * (squares + 1))
    return pushes.sum(dim=1, keepdim=True) * own - pushes @ others


def spectral_embedding(
    graph: scipy.sparse.csr_matrix, n_components: int, random_state: np.random.RandomState
) -> np.ndarray:
    """The leading eigenvectors of the random walk on a graph (Ng, Jordan and Weiss 2001).

    Samples that no walk joins differ in them, however long and winding their groups are. Of long
    groups the eigenvalues are so close to each other that finding them to the last digit takes
    minutes: those found after 300 iterations are good enough to part them.

    Parameters
    ----------
    graph : csr_matrix of shape (n, n)
        Symmetric weights.
    n_components : int
        Number of eigenvectors.
    random_state : RandomState
        Draws the solver's start.

    Returns
    -------
    ndarray of shape (n, n_components)
        Coordinates, float64, those of the largest eigenvalue first.
    """
    degree = np.sqrt(np.asarray(graph.sum(axis=1), dtype=np.float64).ravel())
    symmetric = scipy.sparse.diags(1 / degree) @ graph @ scipy.sparse.diags(1 / degree)
    n = graph.shape[0]
    start = random_state.uniform(-1, 1, (n, min(n, n_components + _N_SPARE)))
    start[:, 0] = degree  # the leading one
    # All at once, unlike Lanczos, which misses equal eigenvalues: groups that no link joins.
    with warnings.catch_warnings():
        # That it has not converged, and that it takes a dense solver for few samples.
        warnings.simplefilter("ignore", UserWarning)
        _, vectors = lobpcg(symmetric, start, tol=_RESIDUAL, maxiter=_N_ITERATIONS)
    vectors = vectors[:, :n_components]
    return vectors / degree[:, None]


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
        if (better == labels).all():
            break
        moved = np.where(random_state.uniform(size=n) < 0.5, better, labels)
        value = modularity(graph, moved)
        if value > best and len(np.unique(moved)) == n_clusters:
            labels, best = moved, value
    return labels


def _members(labels: np.ndarray, n_clusters: int) -> scipy.sparse.csr_matrix:
    """Indicator matrix (n, k) of labels."""
    n = len(labels)
    ones = np.ones(n, dtype=np.float32)
    return scipy.sparse.csr_matrix((ones, (np.arange(n), labels)), shape=(n, n_clusters))
