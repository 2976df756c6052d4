"""Distances, soft assignments, weighted means and reseeding, against the formulas in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skdeepcluster.assignments import (
    label_means,
    log_soft_assignment,
    reseed_empty,
    squared_distances,
    weighted_means,
)

EPS = np.finfo(np.float64).eps
seeds = st.integers(0, 2**32 - 1)
small = st.integers(1, 6)


def loop_distances(z, prototypes):
    """Squared distances, one coordinate at a time."""
    out = np.zeros((len(z), len(prototypes)))
    for i, row in enumerate(z):
        for k, prototype in enumerate(prototypes):
            for a, b in zip(row, prototype, strict=True):
                out[i, k] += (float(a) - float(b)) ** 2
    return out


def distances_of(z, prototypes):
    return squared_distances(torch.from_numpy(z), torch.from_numpy(prototypes)).numpy()


def log_q(distances, temperature):
    return log_soft_assignment(torch.from_numpy(distances), temperature).numpy()


def means_of(z, weights, fallback):
    return weighted_means(*(torch.from_numpy(a) for a in (z, weights, fallback))).numpy()


def dyadic(rng, *shape):
    """Multiples of 1/8 below 64: sums and products of a few are exact in float64."""
    return rng.integers(-512, 512, shape) / 8


# --- squared_distances ------------------------------------------------------------------------


@given(seeds, small, small, small)
@settings(deadline=None)
def test_distances_equal_the_double_loop(seed, n, k, p):
    rng = np.random.default_rng(seed)
    z, prototypes = rng.normal(size=(n, p)), rng.normal(size=(k, p))
    found = distances_of(z, prototypes)
    assert found.shape == (n, k)
    assert found.dtype == np.float64
    # Only the order of at most 6 non-negative summands is free.
    np.testing.assert_allclose(found, loop_distances(z, prototypes), rtol=8 * EPS, atol=0)


@given(seeds, small, small, small, st.sampled_from([0.0, 1e4, -1e6, 1e8]))
@settings(deadline=None)
def test_distances_are_exact_at_large_offsets(seed, n, k, p, offset):
    # ||z||^2 + ||t||^2 - 2 z.t would lose everything at 1e8; differences lose nothing.
    rng = np.random.default_rng(seed)
    z, prototypes = dyadic(rng, n, p), dyadic(rng, k, p)
    expected = loop_distances(z, prototypes)
    np.testing.assert_array_equal(distances_of(z + offset, prototypes + offset), expected)


def test_distance_to_itself_is_zero_at_any_scale():
    z = np.random.default_rng(0).normal(size=(7, 3)) * 10.0 ** np.arange(-9, 12, 3)[:, None]
    np.testing.assert_array_equal(np.diag(distances_of(z, z)), np.zeros(7))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_embeddings_are_measured_in_float64(dtype):
    rng = np.random.default_rng(1)
    z = (1000 + rng.normal(size=(20, 4))).astype(np.float32)
    prototypes = (1000 + rng.normal(size=(3, 4))).astype(dtype)
    found = squared_distances(torch.from_numpy(z), torch.from_numpy(prototypes))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), loop_distances(z, prototypes), rtol=8 * EPS, atol=0)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 4), (5, 1)])
def test_distances_of_one_sample_or_one_prototype(n, k):
    rng = np.random.default_rng(2)
    z, prototypes = dyadic(rng, n, 3), dyadic(rng, k, 3)
    np.testing.assert_array_equal(distances_of(z, prototypes), loop_distances(z, prototypes))


@pytest.mark.parametrize(("n", "k", "p"), [(300_000, 3, 2), (3001, 64, 40)])
def test_blocks_of_samples_change_nothing(n, k, p):
    # Large enough to be computed in more than one block, and not a multiple of a round number.
    rng = np.random.default_rng(3)
    z, prototypes = dyadic(rng, n, p), dyadic(rng, k, p)
    expected = np.stack([((z - row) ** 2).sum(axis=1) for row in prototypes], axis=1)
    np.testing.assert_array_equal(distances_of(z, prototypes), expected)


# --- log_soft_assignment ----------------------------------------------------------------------


@given(seeds, small, small, st.floats(-12, 12), st.floats(-30, 30))
@example(seed=0, n=5, k=4, log_temperature=-12.0, log_scale=30.0)
@example(seed=0, n=5, k=4, log_temperature=12.0, log_scale=30.0)
@example(seed=0, n=5, k=4, log_temperature=-12.0, log_scale=0.0)
@example(seed=0, n=5, k=4, log_temperature=12.0, log_scale=0.0)
@settings(deadline=None)
def test_rows_are_distributions_at_extreme_temperatures(seed, n, k, log_temperature, log_scale):
    distances = np.random.default_rng(seed).uniform(size=(n, k)) * 10.0**log_scale
    logs = log_q(distances, 10.0**log_temperature)
    assert logs.shape == (n, k)
    assert logs.dtype == np.float64
    assert np.isfinite(logs).all()
    q = np.exp(logs)
    assert (q >= 0).all()
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(logs.max(axis=1), logs[np.arange(n), distances.argmin(axis=1)])


def test_equal_distances_share_a_sample_equally():
    # Also where the other clusters underflow to nothing.
    distances = np.array([[3.0, 3.0, 1e30], [1e30, 1e30, 1e30]])
    expected = [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(np.exp(log_q(distances, 1e-12)), expected, rtol=1e-15)


def test_soft_assignment_equals_the_softmax_formula():
    distances = np.array([[0.0, 1.0, 4.0], [2.0, 0.5, 0.5]])
    weights = np.exp(-distances / 0.7)
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(log_q(distances, 0.7)), expected, rtol=1e-14)


@given(seeds, st.integers(2, 6), st.floats(-3, 1))
@settings(deadline=None)
def test_small_temperature_gives_one_hot_rows(seed, k, log_temperature):
    # 1 - q_max <= (K - 1) exp(-gap / T), with 1 - q_max as a sum to keep its digits.
    temperature = 10.0**log_temperature
    distances = np.random.default_rng(seed).uniform(0, 10, size=(8, k))
    others = np.sort(np.exp(log_q(distances, temperature)), axis=1)[:, :-1].sum(axis=1)
    nearest = np.sort(distances, axis=1)[:, :2]
    gap = nearest[:, 1] - nearest[:, 0]
    rounding = np.exp(8 * EPS * distances.max() / temperature)
    # Below the smallest normal number a bound has no digits left.
    bound = (k - 1) * np.exp(-gap / temperature) * rounding + np.finfo(np.float64).tiny
    assert (others <= bound).all()


@given(seeds, st.integers(1, 6), st.floats(0, 12))
@settings(deadline=None)
def test_large_temperature_gives_uniform_rows(seed, k, log_temperature):
    # |log q + log K| <= (max D - min D) / T.
    temperature = 10.0**log_temperature
    distances = np.random.default_rng(seed).uniform(0, 10, size=(8, k))
    logs = log_q(distances, temperature)
    bound = np.ptp(distances, axis=1, keepdims=True) / temperature + 1e-14
    assert (np.abs(logs + np.log(k)) <= bound).all()


@given(seeds, st.floats(0.01, 100), st.integers(-20, 20))
@settings(deadline=None)
def test_assignment_depends_only_on_distance_over_temperature(seed, temperature, power):
    # A power of two scales without rounding, so the results are the same bits.
    distances = np.random.default_rng(seed).exponential(size=(6, 4))
    scaled = log_q(distances * 2.0**power, temperature * 2.0**power)
    np.testing.assert_array_equal(scaled, log_q(distances, temperature))


@given(seeds, small, small, small, st.floats(0.01, 100))
@settings(deadline=None)
def test_assignment_is_permutation_equivariant(seed, n, k, p, temperature):
    rng = np.random.default_rng(seed)
    z, prototypes = dyadic(rng, n, p), dyadic(rng, k, p)
    rows, columns = rng.permutation(n), rng.permutation(k)
    logs = log_q(distances_of(z, prototypes), temperature)
    permuted = log_q(distances_of(z[rows], prototypes[columns]), temperature)
    np.testing.assert_allclose(permuted, logs[rows][:, columns], rtol=1e-14, atol=1e-14)


@given(seeds, small, small, small, st.floats(0.01, 100))
@settings(deadline=None)
def test_assignment_is_translation_invariant(seed, n, k, p, temperature):
    rng = np.random.default_rng(seed)
    z, prototypes, shift = dyadic(rng, n, p), dyadic(rng, k, p), 1000 * dyadic(rng, p)
    moved = log_q(distances_of(z + shift, prototypes + shift), temperature)
    np.testing.assert_array_equal(moved, log_q(distances_of(z, prototypes), temperature))


@given(seeds, st.floats(0.1, 10), st.floats(0.1, 10))
@settings(deadline=None)
def test_scaling_embeddings_equals_scaling_temperature_by_the_square(seed, scale, temperature):
    rng = np.random.default_rng(seed)
    z, prototypes = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    scaled = log_q(distances_of(scale * z, scale * prototypes), scale**2 * temperature)
    expected = log_q(distances_of(z, prototypes), temperature)
    np.testing.assert_allclose(scaled, expected, rtol=1e-12, atol=1e-12)


# --- weighted_means ---------------------------------------------------------------------------


def quadratic(z, weights, prototypes):
    return (weights * loop_distances(z, prototypes)).sum()


@given(seeds, small, small, small, st.floats(-3, 1))
@settings(deadline=None)
def test_weighted_mean_minimises_the_quadratic(seed, n, k, p, log_size):
    # At the minimiser a step d costs exactly sum_k (sum_i w_ik) ||d_k||^2, never less than 0.
    rng = np.random.default_rng(seed)
    z, weights = rng.normal(size=(n, p)), rng.uniform(0.01, 1, size=(n, k))
    best = means_of(z, weights, np.zeros((k, p)))
    assert best.shape == (k, p)
    assert best.dtype == np.float64
    step = 10.0**log_size * rng.normal(size=(k, p))
    rise = quadratic(z, weights, best + step) - quadratic(z, weights, best)
    expected = (weights.sum(axis=0) * (step**2).sum(axis=1)).sum()
    # z - (best + step) is off by eps |z|, which its square multiplies by twice itself.
    terms = quadratic(z, weights, best + step)
    cancellation = weights.sum() * np.abs(z).max() * np.abs(step).max() * p
    rounding = 100 * EPS * (terms + cancellation)
    assert rise >= -rounding
    np.testing.assert_allclose(rise, expected, rtol=1e-12, atol=rounding)


@given(seeds, small, small, small)
@settings(deadline=None)
def test_weighted_means_equal_numpy_averages(seed, n, k, p):
    rng = np.random.default_rng(seed)
    z, weights = rng.normal(size=(n, p)), rng.uniform(0.01, 1, size=(n, k))
    expected = [np.average(z, axis=0, weights=weights[:, j]) for j in range(k)]
    found = means_of(z, weights, np.full((k, p), np.nan))
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_weighted_means_of_many_samples():
    rng = np.random.default_rng(4)
    z, weights = rng.normal(size=(300_000, 2)), rng.uniform(size=(300_000, 3))
    expected = [np.average(z, axis=0, weights=weights[:, j]) for j in range(3)]
    found = means_of(z, weights, np.zeros((3, 2)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_weighted_means_of_float32_are_summed_in_float64():
    z = np.full((100_000, 1), np.float32(0.1))
    weights = np.full((100_000, 1), np.float32(0.3))
    found = means_of(z, weights, np.zeros((1, 1)))
    assert found.dtype == np.float64
    # Summed in float32 the mean would be off by about 1e-4.
    np.testing.assert_allclose(found, float(np.float32(0.1)), rtol=1e-10)


@given(seeds, small, st.integers(2, 6), small)
@settings(deadline=None)
def test_cluster_without_weight_keeps_its_fallback(seed, n, k, p):
    rng = np.random.default_rng(seed)
    z, weights, fallback = (
        rng.normal(size=(n, p)),
        rng.uniform(size=(n, k)),
        rng.normal(size=(k, p)),
    )
    empty = rng.random(k) < 0.5
    weights[:, empty] = 0
    found = means_of(z, weights, fallback)
    np.testing.assert_array_equal(found[empty], fallback[empty])
    for j in np.flatnonzero(~empty):
        expected = np.average(z, axis=0, weights=weights[:, j])
        np.testing.assert_allclose(found[j], expected, rtol=1e-13, atol=1e-13)


def test_no_weight_at_all_keeps_every_fallback():
    fallback = np.array([[1.0, -2.0], [3.0, 4.0]])
    found = means_of(np.ones((5, 2)), np.zeros((5, 2)), fallback)
    np.testing.assert_array_equal(found, fallback)


def test_tiny_weights_still_make_a_mean():
    # A softmax far from every sample ends here, long before it is exactly zero.
    z = np.array([[1.0, 2.0], [3.0, 6.0]])
    weights = np.array([[1e-300, 0.5], [3e-300, 0.5]])
    found = means_of(z, weights, np.zeros((2, 2)))
    np.testing.assert_allclose(found, [[2.5, 5.0], [2.0, 4.0]], rtol=1e-14)


def test_weighted_means_leave_their_input_alone():
    z, weights, fallback = np.ones((3, 2)), np.zeros((3, 2)), np.full((2, 2), 7.0)
    copies = [a.copy() for a in (z, weights, fallback)]
    found = means_of(z, weights, fallback)
    found += 1
    for array, copy in zip((z, weights, fallback), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


# --- reseed_empty -----------------------------------------------------------------------------


def reseed(z, prototypes):
    z, prototypes = np.array(z, dtype=float), np.array(prototypes, dtype=float)
    moved, n_moved = reseed_empty(torch.from_numpy(z), torch.from_numpy(prototypes))
    return moved.numpy(), n_moved


def occupied(z, prototypes):
    """Clusters that are nearest to at least one sample."""
    return set(loop_distances(z, prototypes).argmin(axis=1).tolist())


def test_nothing_moves_where_no_cluster_is_empty():
    z, prototypes = [[0.0], [1.0], [10.0]], [[0.4], [9.0]]
    moved, n_moved = reseed(z, prototypes)
    assert n_moved == 0
    np.testing.assert_array_equal(moved, prototypes)


def test_empty_cluster_moves_to_the_worst_represented_sample():
    # Distances to the own prototype: 1, 0, 2 (in cluster 0) and 0.
    moved, n_moved = reseed([[0.0], [1.0], [3.0], [10.0]], [[1.0], [10.0], [100.0]])
    assert n_moved == 1
    np.testing.assert_array_equal(moved, [[1.0], [10.0], [3.0]])


def test_two_empty_clusters_move_to_different_samples():
    moved, n_moved = reseed([[0.0], [1.0], [3.0], [-4.0]], [[0.5], [100.0], [-200.0]])
    assert n_moved == 2
    assert moved[0] == 0.5
    assert sorted(moved[1:, 0].tolist()) == [-4.0, 3.0]


def test_lone_sample_is_not_taken_from_its_cluster():
    # 50 is farthest from its prototype (40) but the only sample there.
    moved, n_moved = reseed([[0.0], [1.0], [50.0]], [[0.0], [40.0], [1000.0]])
    assert n_moved == 1
    np.testing.assert_array_equal(moved, [[0.0], [40.0], [1.0]])


def test_reseeding_does_not_starve_a_neighbour():
    # 10.9 is the farthest from its prototype (0), but a prototype there would take 12 away
    # from the cluster at 22, which has nothing else.
    z, prototypes = np.array([[0.5], [10.9], [12.0]]), [[0.0], [22.0], [1000.0]]
    moved, _ = reseed(z, prototypes)
    assert occupied(z, moved) == {0, 1, 2}


def test_identical_prototypes_are_separated():
    # Merged prototypes: one of the two is nearest to no sample.
    z = np.array([[0.0], [1.0], [2.0], [9.0]])
    moved, n_moved = reseed(z, [[3.0], [3.0]])
    assert n_moved == 1
    assert occupied(z, moved) == {0, 1}
    assert sorted(moved[:, 0].tolist()) == [3.0, 9.0]


@pytest.mark.parametrize("k", [3, 4, 6])
def test_fewer_distinct_samples_than_clusters_leaves_clusters_empty(k):
    z = np.array([[0.0], [0.0], [0.0], [5.0]])
    prototypes = np.array([[0.0], [5.0]] + [[100.0 * j] for j in range(1, k - 1)])
    moved, n_moved = reseed(z, prototypes)
    assert n_moved == 0
    np.testing.assert_array_equal(moved, prototypes)


def test_identical_samples_occupy_one_cluster_only():
    z = np.full((4, 2), 3.0)
    moved, n_moved = reseed(z, [[3.0, 3.0], [8.0, 8.0], [9.0, 9.0]])
    assert n_moved == 0
    np.testing.assert_array_equal(moved, [[3.0, 3.0], [8.0, 8.0], [9.0, 9.0]])


def test_one_sample_keeps_its_cluster():
    moved, n_moved = reseed([[1.0]], [[0.0], [5.0]])
    assert n_moved == 0
    np.testing.assert_array_equal(moved, [[0.0], [5.0]])


@st.composite
def crowded(draw):
    """Samples on a small grid, so that many coincide; prototypes off the grid, so no ties."""
    n, k, p, side = (draw(st.integers(1, high)) for high in (12, 8, 3, 12))
    rng = np.random.default_rng(draw(seeds))
    return rng.integers(0, side, (n, p)).astype(float), rng.normal(0, side, (k, p))


@given(crowded())
@settings(deadline=None, max_examples=200)
def test_reseeding_fills_as_many_clusters_as_there_are_distinct_samples(problem):
    z, before = problem
    moved, n_moved = reseed(z, before)
    samples = {tuple(row) for row in z}
    changed = (moved != before).any(axis=1)
    assert changed.sum() <= n_moved
    assert all(tuple(row) in samples for row in moved[changed])
    assert len(occupied(z, moved)) == min(len(before), len(samples))


@given(crowded())
@example(problem=(np.array([[1.0], [1.0]]), np.array([[0.0], [3.0]])))
@settings(deadline=None, max_examples=200)
def test_reseeding_never_empties_another_cluster(problem):
    z, before = problem
    moved, _ = reseed(z, before)
    # With fewer distinct samples than prototypes, a prototype far from its samples may lose them
    # to one that moved onto them: the number of filled clusters grows all the same.
    assert len(occupied(z, moved)) >= len(occupied(z, before))
    if len(before) <= len(np.unique(z, axis=0)):
        assert occupied(z, moved) >= occupied(z, before)


@given(seeds, st.integers(1, 12), st.integers(1, 8))
@settings(deadline=None)
def test_reseeding_twice_changes_nothing_more(seed, n, k):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 2))
    once, _ = reseed(z, rng.normal(size=(k, 2)))
    twice, n_moved = reseed(z, once)
    assert n_moved == 0
    np.testing.assert_array_equal(twice, once)


def test_reseeding_does_not_write_into_its_input():
    z = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    prototypes = torch.tensor([[1.0], [100.0]], dtype=torch.float64)
    moved, n_moved = reseed_empty(z, prototypes)
    assert n_moved == 1
    assert moved.tolist() == [[1.0], [3.0]]
    assert prototypes.tolist() == [[1.0], [100.0]]
    assert z.tolist() == [[0.0], [1.0], [3.0]]


def test_means_of_labels():
    z = torch.tensor([[0.0, 2.0], [4.0, 0.0], [2.0, 4.0]], dtype=torch.float64)
    fallback = torch.full((3, 2), 9.0, dtype=torch.float64)
    means = label_means(z, torch.tensor([0, 2, 0]), fallback)
    assert means.tolist() == [[1.0, 3.0], [9.0, 9.0], [4.0, 0.0]]
