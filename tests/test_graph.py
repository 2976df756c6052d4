"""The neighbour graph and its clusters, against the formulas of their docstrings."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

from skdeepcluster import graph
from skdeepcluster.graph import (
    NeighborGraph,
    graph_clustering,
    modularity,
    neighbor_embedding,
    neighbor_graph,
    refined,
    spectral_embedding,
)


def points(seed, n=60, p=4):
    return np.random.default_rng(seed).normal(size=(n, p)).astype(np.float32)


def two_sides(seed, n=30):
    """Samples of two halves, linked to the other half alone."""
    links = np.zeros((n, n), dtype=np.float32)
    links[: n // 2, n // 2 :] = np.random.default_rng(seed).uniform(size=(n // 2, n - n // 2))
    return scipy.sparse.csr_matrix(links + links.T)


def two_cliques():
    """Five and six samples, all linked within, and one link between."""
    links = np.zeros((11, 11), dtype=np.float32)
    links[:5, :5] = links[5:, 5:] = 1
    np.fill_diagonal(links, 0)
    links[4, 5] = links[5, 4] = 0.5
    return scipy.sparse.csr_matrix(links), np.array([0] * 5 + [1] * 6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_weights_of_the_graph_are_umaps(seed):
    z = points(seed)
    distances = np.linalg.norm(z[:, None].astype(float) - z, axis=2)
    np.fill_diagonal(distances, np.inf)
    directed = np.zeros((60, 60))
    for i, row in enumerate(distances):
        nearest = np.argsort(row)[:10]
        excess = row[nearest] - row[nearest[0]]
        low, high = 1e-6, 1e6
        for _ in range(200):
            scale = np.sqrt(low * high)
            low, high = (
                (low, scale) if np.exp(-excess / scale).sum() > np.log2(10) else (scale, high)
            )
        directed[i, nearest] = np.exp(-excess / scale)
    expected = directed + directed.T - directed * directed.T
    np.testing.assert_allclose(neighbor_graph(z).toarray(), expected, rtol=1e-3, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(-3, 3))
@settings(max_examples=10, deadline=None)
def test_graph_does_not_depend_on_scale_place_and_order(seed, scale, shift):
    z = points(seed)
    links = neighbor_graph(z).toarray()
    moved = neighbor_graph((scale * (z.astype(float) + shift)).astype(np.float32)).toarray()
    np.testing.assert_allclose(moved, links, rtol=1e-2, atol=1e-3)
    order = np.random.default_rng(seed).permutation(len(z))
    np.testing.assert_allclose(neighbor_graph(z[order]).toarray(), links[order][:, order])


def test_links_among_copies_and_to_others_weigh_something():
    z = np.repeat(points(0, n=8), 15, axis=0)
    z = np.concatenate([z, points(1, n=3)])
    links = neighbor_graph(z)
    assert (links != links.T).nnz == 0
    assert 0 < links.data.min() <= links.data.max() <= 1
    assert np.diff(links.indptr).min() >= 10


def test_no_link_is_too_long_to_weigh_something():
    """Seven neighbours are near, three a thousand times as far."""
    links = neighbor_graph(np.concatenate([points(0, n=8), points(0, n=8) + 1e4]))
    assert links.data.min() > 0
    assert np.diff(links.indptr).min() >= 10


@pytest.mark.parametrize("z", [np.ones((40, 3)), np.eye(40)], ids=["copies", "simplex"])
def test_links_to_neighbours_that_are_equally_far_weigh_one(z):
    """No excess over the nearest neighbour, whatever the scale."""
    links = neighbor_graph(z.astype(np.float32))
    np.testing.assert_array_equal(links.data, 1)
    assert np.diff(links.indptr).min() >= 10
    assert links.diagonal().sum() == 0


@pytest.mark.parametrize("n", [2, 5, 11])
def test_few_samples_are_all_linked(n):
    np.testing.assert_array_equal(
        neighbor_graph(points(0, n=n)).toarray() > 0, ~np.eye(n, dtype=bool)
    )


@pytest.mark.parametrize(
    "edges, labels, expected",
    [
        # Two triangles: each holds half of the weight and of the degrees.
        ([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)], [0, 0, 0, 1, 1, 1], 1 / 2),
        # With a bridge: 3 of 7 edges in each.
        ([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)], [0, 0, 0, 1, 1, 1], 5 / 14),
        # A path of three edges, cut in the middle, and at an end.
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 1, 1], 2 / 3 - 1 / 2),
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 0, 1], 2 / 3 - 26 / 36),
        # Samples on their own, a label nobody has, and one cluster.
        ([(0, 1), (1, 2), (2, 3)], [0, 1, 2, 3], -10 / 36),
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 5, 5], 2 / 3 - 1 / 2),
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 0, 0], 0),
    ],
)
def test_modularity_of_small_graphs(edges, labels, expected):
    rows, columns = np.transpose(edges)
    n = len(labels)
    half = scipy.sparse.csr_matrix((np.ones(len(edges), np.float32), (rows, columns)), (n, n))
    assert modularity((half + half.T).tocsr(), np.array(labels)) == pytest.approx(
        expected, abs=1e-7
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_modularity_is_the_sum_over_pairs(seed, k):
    rng = np.random.default_rng(seed)
    links = np.triu(rng.uniform(size=(12, 12)) * (rng.uniform(size=(12, 12)) < 0.4), 1)
    links += links.T
    links[0, 1] = links[1, 0] = 1
    labels = rng.integers(k, size=12)
    degrees, total = links.sum(axis=1), links.sum()
    expected = sum(
        links[i, j] / total - degrees[i] * degrees[j] / total**2
        for i in range(12)
        for j in range(12)
        if labels[i] == labels[j]
    )
    found = modularity(scipy.sparse.csr_matrix(links.astype(np.float32)), labels)
    assert found == pytest.approx(expected, abs=1e-6)


def test_refinement_puts_samples_where_their_links_are():
    links, labels = two_cliques()
    wrong = labels.copy()
    wrong[[1, 8]] = wrong[[8, 1]]
    random_state = np.random.RandomState(0)
    assert modularity(links, wrong) < modularity(links, labels)
    before = wrong.copy()
    np.testing.assert_array_equal(refined(links, wrong, random_state), labels)
    np.testing.assert_array_equal(wrong, before)


@pytest.mark.parametrize("seed", range(3))
def test_refinement_keeps_a_sample_whose_cluster_it_is(seed):
    """A clique is best left whole, but then the other cluster would be empty."""
    links = scipy.sparse.csr_matrix(1 - np.eye(6, dtype=np.float32))
    labels = np.array([0, 0, 0, 0, 0, 1])
    assert modularity(links, labels) < modularity(links, np.zeros(6, dtype=int))
    np.testing.assert_array_equal(refined(links, labels, np.random.RandomState(seed)), labels)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
@settings(max_examples=15, deadline=None)
def test_refinement_never_lowers_modularity_nor_empties_a_cluster(seed, k):
    links = neighbor_graph(points(seed))
    labels = np.random.default_rng(seed).permutation(np.arange(60) % k)
    better = refined(links, labels, np.random.RandomState(seed % 1000))
    assert modularity(links, better) >= modularity(links, labels)
    assert len(np.unique(better)) == k
    assert better.dtype == np.int64


@pytest.mark.parametrize("seed", range(20))
def test_moves_at_a_time_that_lower_modularity_are_undone(seed):
    """All want to be where their links are, but those go there too."""
    links, labels = two_sides(seed), np.random.default_rng(seed).permutation(np.arange(30) % 2)
    for _ in range(2):
        better = refined(links, labels, np.random.RandomState(seed))
        assert modularity(links, better) >= modularity(links, labels)
        labels = better


@pytest.mark.parametrize("p", [1, 2, 20])
def test_embedding_brings_linked_samples_together(p):
    z, y = make_blobs(90, p, centers=np.array([[-9.0] * p, [0.0] * p, [9.0] * p]), random_state=0)
    z = z.astype(np.float32)
    links = neighbor_graph(z)
    coordinates = neighbor_embedding(z, links, np.random.RandomState(0))
    assert coordinates.shape == (90, 10)
    assert coordinates.dtype == np.float32
    means = np.stack([coordinates[y == k].mean(axis=0) for k in range(3)])
    distances = np.linalg.norm(coordinates[:, None] - means, axis=2)
    np.testing.assert_array_equal(distances.argmin(axis=1), y)
    again = neighbor_embedding(z, links, np.random.RandomState(0))
    np.testing.assert_array_equal(again, coordinates)
    assert not np.array_equal(neighbor_embedding(z, links, np.random.RandomState(1)), again)


@pytest.mark.parametrize("seed", range(2))
def test_embedding_minimises_its_loss(seed):
    z = points(seed, n=200)
    links = neighbor_graph(z)
    weights = links.toarray().astype(float)
    others = ~np.eye(200, dtype=bool)

    def loss(y):
        squares = np.square(y[:, None].astype(float) - y).sum(axis=2)
        pull = (weights * np.log1p(squares)).sum()
        away = np.log(squares / (1 + squares), where=others, out=np.zeros_like(squares))
        return pull - 10 / 200 * (weights.sum(axis=1, keepdims=True) * away).sum()

    coordinates = neighbor_embedding(z, links, np.random.RandomState(0))
    # Larger, smaller, disturbed, and the start.
    rng = np.random.default_rng(0)
    for worse in (
        1.2 * coordinates,
        coordinates / 1.2,
        coordinates + rng.normal(0, 0.3, coordinates.shape),
        10 * z / np.abs(z).max(),
    ):
        assert loss(coordinates) < loss(worse)


def test_embedding_parts_moons():
    """Samples of one moon are neighbours in it, and links are short."""
    z, y = make_moons(300, noise=0.05, random_state=0)
    links = neighbor_graph(z)
    coordinates = neighbor_embedding(z, links, np.random.RandomState(0))
    distances = np.linalg.norm(coordinates[:, None] - coordinates, axis=2)
    linked = links.toarray() > 0
    own = y[:, None] == y
    assert distances[linked].mean() < 0.2 * distances[~linked].mean()
    # In z, moons come closer to each other than their own samples are.
    assert distances[~own].min() > distances[linked & own].mean()


@pytest.mark.parametrize(
    "z", [points(0, n=30), np.repeat(points(0, n=5), 12, axis=0), np.ones((30, 1), np.float32)],
    ids=["few", "copies", "all one"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning:sklearn")
def test_embedding_of_any_samples_is_finite(z):
    coordinates = neighbor_embedding(z, neighbor_graph(z), np.random.RandomState(0))
    assert coordinates.shape == (len(z), 10)
    assert np.isfinite(coordinates).all()


def test_embedding_does_not_depend_on_the_blocks(monkeypatch):
    z = points(0, n=200)
    links = neighbor_graph(z)
    monkeypatch.setattr(graph, "_N_STEPS", 5)
    whole = neighbor_embedding(z, links, np.random.RandomState(0))
    monkeypatch.setattr(graph, "blocks", lambda n, _: [slice(i, i + 37) for i in range(0, n, 37)])
    parts = neighbor_embedding(z, links, np.random.RandomState(0))
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("links", [neighbor_graph(points(0)), two_sides(0, n=60)])
def test_spectrum_is_that_of_the_random_walk(links):
    """A walk between two sides has eigenvalues near -1 too: they lead nowhere."""
    walk = links.toarray().astype(float)
    walk /= walk.sum(axis=1, keepdims=True)
    largest = np.sort(np.linalg.eigvals(walk).real)[:-5:-1]
    vectors = spectral_embedding(links, 4, np.random.RandomState(0))
    assert vectors.shape == (60, 4)
    assert np.linalg.matrix_rank(vectors) == 4
    np.testing.assert_allclose(walk @ vectors, vectors * largest, atol=1e-6)
    again = spectral_embedding(links, 4, np.random.RandomState(0))
    np.testing.assert_array_equal(again, vectors)


@pytest.mark.parametrize("n_groups, n_clusters", [(3, 2), (10, 5)])
def test_more_separate_groups_than_clusters_are_clustered(n_groups, n_clusters):
    """No walk joins them: the leading eigenvalue is there more often than is asked for."""
    centers = np.random.default_rng(0).uniform(-1000, 1000, (n_groups, 2))
    z, _ = make_blobs(500, centers=centers, cluster_std=0.1, random_state=0)
    labels = graph_clustering(z, n_clusters, 1, 0)
    np.testing.assert_array_equal(np.unique(labels), range(n_clusters))


@pytest.mark.parametrize(
    "make", [lambda: make_circles(600, factor=0.4, noise=0.03, random_state=0),
             lambda: make_moons(600, noise=0.05, random_state=0)], ids=["circles", "moons"],
)  # fmt: skip
def test_groups_of_any_shape_are_found(make):
    z, y = make()
    before, torch_state = z.copy(), torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    labels = graph_clustering(z, 2, 5, 0)
    assert adjusted_rand_score(y, KMeans(2, n_init=5, random_state=0).fit_predict(z)) < 0.7
    assert adjusted_rand_score(y, labels) == 1
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(np.unique(labels), [0, 1])
    np.testing.assert_array_equal(z, before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(graph_clustering(z, 2, 5, 0), labels)


def test_most_modular_start_is_kept():
    """Two close groups and a wide one: k-means on the embedding alone may cut the wide one."""
    z, y = make_blobs([200, 200, 600], 5, centers=None, cluster_std=[0.3, 0.3, 1.5], random_state=3)
    links = NeighborGraph(z, 0)
    labels = graph_clustering(z, 3, 5, 0, links)
    assert links.modularity(labels) >= links.modularity(y) - 1e-3
    assert adjusted_rand_score(y, labels) > 0.99


def test_samples_beyond_the_graph_follow_their_neighbours(monkeypatch):
    z, y = make_moons(900, noise=0.05, random_state=0)
    z = z.astype(np.float32)
    monkeypatch.setattr(graph, "_GRAPH_SAMPLES", 300)
    links = NeighborGraph(z, 0)
    assert links.links.shape == (300, 300)
    assert len(set(links.some)) == len(links.some) == 300
    assert links.modularity(y) == modularity(neighbor_graph(z[links.some]), y[links.some])
    labels = graph_clustering(z, 2, 5, 0)
    assert labels.shape == (900,)
    assert labels.dtype == np.int64
    assert adjusted_rand_score(y, labels) == 1


def test_a_graph_that_is_there_changes_nothing():
    z, _ = make_blobs(200, 3, centers=4, random_state=1)
    given = graph_clustering(z, 4, 1, 7, NeighborGraph(z, 7))
    np.testing.assert_array_equal(given, graph_clustering(z, 4, 1, 7))
