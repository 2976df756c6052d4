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
)


def points(seed, n=60, p=4):
    return np.random.default_rng(seed).normal(size=(n, p)).astype(np.float32)


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
    np.testing.assert_array_equal(refined(links, wrong, random_state), labels)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
@settings(max_examples=15, deadline=None)
def test_refinement_never_lowers_modularity_nor_empties_a_cluster(seed, k):
    links = neighbor_graph(points(seed))
    labels = np.random.default_rng(seed).permutation(np.arange(60) % k)
    better = refined(links, labels, np.random.RandomState(seed % 1000))
    assert modularity(links, better) >= modularity(links, labels)
    assert len(np.unique(better)) == k
    assert better.dtype == np.int64


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


def test_embedding_does_not_depend_on_the_blocks(monkeypatch):
    z = points(0, n=200)
    links = neighbor_graph(z)
    monkeypatch.setattr(graph, "_N_STEPS", 5)
    whole = neighbor_embedding(z, links, np.random.RandomState(0))
    monkeypatch.setattr(graph, "blocks", lambda n, _: [slice(i, i + 37) for i in range(0, n, 37)])
    parts = neighbor_embedding(z, links, np.random.RandomState(0))
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-3)


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
