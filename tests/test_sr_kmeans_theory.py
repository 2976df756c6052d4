"""Soft regularised k-means against its theory: energy, mixtures, Proposition 2 and limits.

T is the temperature lam * K. Everything on the right-hand side of a comparison is NumPy.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from skdeepcluster.assignments import log_soft_assignment, squared_distances, weighted_means
from skdeepcluster.sr_kmeans import SoftKMeans

EPS32 = np.finfo(np.float32).eps
seeds = st.integers(0, 2**32 - 1)
temperatures = st.floats(-2, 1.5).map(lambda power: 10.0**power)


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


def blobs(seed, n=60, k=4, p=3):
    """Overlapping blobs, and prototypes drawn from the samples."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(k, p))[rng.integers(0, k, n)] + rng.normal(size=(n, p))
    return z, z[rng.choice(n, k, replace=False)].copy()


# --- the package's two half-steps, and the same in NumPy --------------------------------------


def q_step(z, prototypes, temperature):
    distances = squared_distances(tensor(z), tensor(prototypes))
    return log_soft_assignment(distances, temperature).exp().numpy()


def prototype_step(z, q, prototypes):
    return weighted_means(tensor(z), tensor(q), tensor(prototypes)).numpy()


def numpy_distances(z, prototypes):
    return ((z[:, None, :] - prototypes[None, :, :]) ** 2).sum(axis=2)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def numpy_q(z, prototypes, temperature):
    return softmax(-numpy_distances(z, prototypes) / temperature)


def energy_terms(z, q, prototypes, temperature):
    """The three sums of E(Q, Theta'), the last with its sign."""
    return np.array(
        [
            (q * numpy_distances(z, prototypes)).sum(),
            temperature * xlogy(q, q).sum(),
            -(z**2).sum(),
        ]
    )


def energy(z, q, prototypes, temperature):
    return energy_terms(z, q, prototypes, temperature).sum()


def one_hot(labels, k):
    return np.eye(k)[labels]


def nearest(z, prototypes):
    return numpy_distances(z, prototypes).argmin(axis=1)


def started(z, labels, k, temperature):
    """A SoftKMeans after start() with these labels."""
    model = SoftKMeans(temperature, torch.zeros(k, z.shape[1], dtype=torch.float64))
    model.start(tensor(z), tensor(labels))
    return model


def iterated(seed, temperature, steps=3, k=4):
    """A SoftKMeans some steps into a run, and its samples."""
    z, prototypes = blobs(seed, k=k)
    model = started(z, nearest(z, prototypes), k, temperature)
    for epoch in range(steps):
        assert model.e_step(tensor(z), epoch)["n_reseeded"] == 0
    return model, z


# --- (c) the energy and its blocks ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_each_half_step_lowers_the_energy(seed):
    z, prototypes = blobs(seed)
    temperature = 10 ** np.random.default_rng(seed).uniform(-2, 1)
    q = q_step(z, prototypes, temperature)
    last = energy(z, q, prototypes, temperature)
    for _ in range(30):
        prototypes = prototype_step(z, q, prototypes)
        middle = energy(z, q, prototypes, temperature)
        q = q_step(z, prototypes, temperature)
        new = energy(z, q, prototypes, temperature)
        assert middle <= last + 1e-8 * abs(last)
        assert new <= middle + 1e-8 * abs(middle)
        last = new
    assert last >= -len(z) * temperature * np.log(len(prototypes)) - (z**2).sum()


@given(seeds, temperatures)
@settings(deadline=None)
def test_soft_assignment_is_the_exact_minimiser_over_targets(seed, temperature):
    # Gibbs: E(Q') - E(Q) = T sum q' log(q' / q) for every Q', which is never negative.
    z, prototypes = blobs(seed, n=10)
    q = q_step(z, prototypes, temperature)
    log_q = log_soft_assignment(squared_distances(tensor(z), tensor(prototypes)), temperature)
    other = np.random.default_rng(seed).dirichlet(np.ones(q.shape[1]), size=len(q))
    rise = energy(z, other, prototypes, temperature) - energy(z, q, prototypes, temperature)
    divergence = temperature * (xlogy(other, other) - other * log_q.numpy()).sum()
    assert rise >= 0
    np.testing.assert_allclose(rise, divergence, rtol=1e-9, atol=1e-11)


@given(seeds, temperatures)
@settings(deadline=None)
def test_prototype_step_is_the_exact_minimiser_over_prototypes(seed, temperature):
    # A step d away costs exactly sum_k (sum_i q_ik) ||d_k||^2.
    z, prototypes = blobs(seed, n=20)
    q = q_step(z, prototypes, temperature)
    best = prototype_step(z, q, prototypes)
    step = np.random.default_rng(seed).normal(size=best.shape)
    rise = energy(z, q, best + step, temperature) - energy(z, q, best, temperature)
    expected = (q.sum(axis=0) * (step**2).sum(axis=1)).sum()
    np.testing.assert_allclose(rise, expected, rtol=1e-10)


@given(seeds, temperatures)
@settings(deadline=None)
def test_energy_after_the_target_step_is_a_log_sum_exp(seed, temperature):
    z, prototypes = blobs(seed)
    terms = energy_terms(z, q_step(z, prototypes, temperature), prototypes, temperature)
    logits = torch.from_numpy(-numpy_distances(z, prototypes) / temperature)
    closed = -temperature * torch.logsumexp(logits, dim=1).sum().item() - (z**2).sum()
    np.testing.assert_allclose(terms.sum(), closed, rtol=0, atol=1e-12 * np.abs(terms).sum())


@given(seeds, temperatures)
@settings(deadline=None)
def test_energy_after_the_prototype_step_has_no_distances(seed, temperature):
    # E = -sum_k (sum_i q_ik) ||theta'_k||^2 + T sum q log q.
    z, prototypes = blobs(seed)
    q = q_step(z, prototypes, temperature)
    prototypes = prototype_step(z, q, prototypes)
    terms = energy_terms(z, q, prototypes, temperature)
    closed = -(q.sum(axis=0) * (prototypes**2).sum(axis=1)).sum() + terms[1]
    np.testing.assert_allclose(terms.sum(), closed, rtol=0, atol=1e-12 * np.abs(terms).sum())


@given(seeds, temperatures)
@settings(deadline=None)
def test_module_energy_equals_the_formula_with_q_log_q(seed, temperature):
    z, prototypes = blobs(seed)
    model = SoftKMeans(temperature, tensor(prototypes))
    terms = energy_terms(z, numpy_q(z, prototypes, temperature), prototypes, temperature)
    scale = len(z) * temperature
    found = model.energy(tensor(z))
    np.testing.assert_allclose(
        found, terms.sum() / scale, rtol=0, atol=1e-12 * np.abs(terms).sum() / scale
    )


@given(seeds, temperatures)
@settings(deadline=None)
def test_module_posterior_equals_the_softmax_formula(seed, temperature):
    z, prototypes = blobs(seed)
    found = SoftKMeans(temperature, tensor(prototypes)).log_posterior(tensor(z)).exp().numpy()
    np.testing.assert_allclose(found, numpy_q(z, prototypes, temperature), rtol=0, atol=1e-11)


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_reported_objective_never_rises_with_fixed_embeddings(seed, temperature):
    z, prototypes = blobs(seed)
    model = started(z, nearest(z, prototypes), 4, temperature)
    history = [model.e_step(tensor(z), epoch) for epoch in range(30)]
    assert [report["n_reseeded"] for report in history] == [0] * 30
    values = np.array([report["objective"] for report in history])
    assert (np.diff(values) <= 1e-8 * np.abs(values[:-1])).all()
    assert values[-1] < values[0]
    assert values[-1] == model.energy(tensor(z))


@given(seeds, temperatures)
@settings(deadline=None, max_examples=30)
def test_reported_information_is_that_of_the_new_targets(seed, temperature):
    z, prototypes = blobs(seed)
    model = started(z, nearest(z, prototypes), 4, temperature)
    report = model.e_step(tensor(z), 0)
    q = numpy_q(z, model.prototypes.numpy(), temperature)
    share = q.mean(axis=0)
    expected = xlogy(q, q).sum(axis=1).mean() - xlogy(share, share).sum()
    # The targets are stored in float32.
    np.testing.assert_allclose(report["mutual_information"], expected, rtol=0, atol=10 * EPS32)


# --- (c) the Gaussian mixture -----------------------------------------------------------------


def em_responsibilities(z, means, variance):
    """E-step of an isotropic mixture with equal weights and one fixed variance."""
    n, p = z.shape
    k = len(means)
    joint = np.empty((n, k))
    for j in range(k):
        distance = ((z - means[j]) ** 2).sum(axis=1)
        joint[:, j] = -np.log(k) - p / 2 * np.log(2 * np.pi * variance) - distance / (2 * variance)
    return softmax(joint)


def em_means(z, responsibilities):
    return (responsibilities.T @ z) / responsibilities.sum(axis=0)[:, None]


@pytest.mark.parametrize("temperature", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_half_steps_are_em_with_variance_half_the_temperature(seed, temperature):
    z, prototypes = blobs(seed)
    means = prototypes
    for _ in range(30):
        q = q_step(z, prototypes, temperature)
        responsibilities = em_responsibilities(z, means, temperature / 2)
        np.testing.assert_allclose(q, responsibilities, rtol=0, atol=1e-9)
        prototypes = prototype_step(z, q, prototypes)
        means = em_means(z, responsibilities)
        np.testing.assert_allclose(prototypes, means, rtol=0, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_module_steps_are_em_from_the_initial_labels(seed, temperature):
    z, prototypes = blobs(seed)
    labels = nearest(z, prototypes)
    model = started(z, labels, 4, temperature)
    responsibilities, atol = one_hot(labels, 4), 1e-13
    for epoch in range(20):
        model.e_step(tensor(z), epoch)
        means = em_means(z, responsibilities)
        np.testing.assert_allclose(model.prototypes.numpy(), means, rtol=0, atol=atol)
        # One step at a time: the next M-step has the module's targets, rounded to float32.
        responsibilities = em_responsibilities(z, model.prototypes.numpy(), temperature / 2)
        found = model.log_posterior(tensor(z)).exp().numpy()
        np.testing.assert_allclose(found, responsibilities, rtol=0, atol=1e-11)
        atol = EPS32 * np.abs(z).max()


def sklearn_mixture(means, variance):
    k = len(means)
    mixture = GaussianMixture(n_components=k, covariance_type="spherical")
    mixture.weights_ = np.full(k, 1 / k)
    mixture.means_ = means
    mixture.covariances_ = np.full(k, variance)
    mixture.precisions_cholesky_ = np.full(k, variance**-0.5)
    return mixture


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_posterior_equals_that_of_sklearns_gaussian_mixture(temperature):
    z, prototypes = blobs(0)
    found = SoftKMeans(temperature, tensor(prototypes)).log_posterior(tensor(z)).exp().numpy()
    expected = sklearn_mixture(prototypes, temperature / 2).predict_proba(z)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_energy_is_the_negative_log_likelihood_of_the_mixture(temperature):
    # E / (N T) = -mean log-likelihood - log K - (p / 2) log(pi T) - mean ||z||^2 / T.
    z, prototypes = blobs(1)
    k, p = prototypes.shape
    log_likelihood = sklearn_mixture(prototypes, temperature / 2).score(z)
    constants = np.log(k) + p / 2 * np.log(np.pi * temperature)
    expected = -log_likelihood - constants - (z**2).sum(axis=1).mean() / temperature
    found = SoftKMeans(temperature, tensor(prototypes)).energy(tensor(z))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


# --- (c) invariances --------------------------------------------------------------------------


def run(z, labels, temperature, steps=4):
    model = started(z, labels, 4, temperature)
    reports = [model.e_step(tensor(z), epoch) for epoch in range(steps)]
    return model.prototypes.numpy(), model.log_posterior(tensor(z)).exp().numpy(), reports[-1]


def test_renumbering_the_initial_labels_only_renumbers_the_clusters():
    z, prototypes = blobs(2)
    labels, order = nearest(z, prototypes), np.array([2, 0, 3, 1])
    first, q, report = run(z, labels, 1.5)
    renamed, renamed_q, renamed_report = run(z, order[labels], 1.5)
    np.testing.assert_allclose(renamed[order], first, rtol=0, atol=1e-12)
    np.testing.assert_allclose(renamed_q[:, order], q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(renamed_report["objective"], report["objective"], rtol=1e-12)


def test_order_of_the_samples_does_not_matter():
    z, prototypes = blobs(3)
    labels, order = nearest(z, prototypes), np.random.default_rng(0).permutation(len(z))
    first, q, _ = run(z, labels, 1.5)
    shuffled, shuffled_q, _ = run(z[order], labels[order], 1.5)
    np.testing.assert_allclose(shuffled, first, rtol=0, atol=1e-12)
    np.testing.assert_allclose(shuffled_q, q[order], rtol=0, atol=1e-12)


def test_translation_moves_the_prototypes_and_leaves_the_targets():
    z, prototypes = blobs(4)
    labels, shift = nearest(z, prototypes), np.array([5.0, -3.0, 8.0])
    # Two steps: the second is the first to see soft targets, and these are rounded to float32.
    first, q, _ = run(z, labels, 1.5, steps=2)
    moved, moved_q, _ = run(z + shift, labels, 1.5, steps=2)
    np.testing.assert_allclose(moved, first + shift, rtol=0, atol=EPS32)
    np.testing.assert_allclose(moved_q, q, rtol=0, atol=10 * EPS32)


@pytest.mark.parametrize("scale", [0.25, 8.0])
def test_scaling_embeddings_equals_scaling_the_temperature_by_the_square(scale):
    # Powers of two: nothing is rounded, so even the reports agree.
    z, prototypes = blobs(5)
    labels = nearest(z, prototypes)
    first, q, report = run(z, labels, 1.5)
    scaled, scaled_q, scaled_report = run(scale * z, labels, 1.5 * scale**2)
    np.testing.assert_allclose(scaled, scale * first, rtol=1e-13)
    np.testing.assert_allclose(scaled_q, q, rtol=1e-13, atol=1e-15)
    assert scaled_report == pytest.approx(report, rel=1e-12)


# --- (c) the phase transition at T = 2 nu -----------------------------------------------------


def top_direction(z):
    """Largest eigenvalue nu of Cov(Z) with ddof 0, and its eigenvector."""
    values, vectors = np.linalg.eigh(np.cov(z.T, ddof=0))
    return values[-1], vectors[:, -1]


def spread_after(seed, ratio, steps):
    """Largest distance of a prototype from the mean, started close to the mean."""
    z, prototypes = blobs(seed, n=80, k=3, p=2)
    nu, _ = top_direction(z)
    prototypes = z.mean(axis=0) + 1e-3 * (prototypes - z.mean(axis=0))
    for _ in range(steps):
        prototypes = prototype_step(z, q_step(z, prototypes, 2 * nu * ratio), prototypes)
    return np.linalg.norm(prototypes - z.mean(axis=0), axis=1).max()


@pytest.mark.parametrize("seed", range(3))
def test_prototypes_merge_just_above_the_critical_temperature(seed):
    assert spread_after(seed, 1.03, steps=800) < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_prototypes_part_just_below_the_critical_temperature(seed):
    assert spread_after(seed, 0.97, steps=800) > 0.1


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.03, 2.0])
def test_a_small_split_grows_by_two_nu_over_the_temperature(ratio):
    # Linearised about the merged solution: d_k -> (2 / T) Cov(Z) d_k where sum_k d_k = 0.
    z, _ = blobs(0)
    nu, direction = top_direction(z)
    split = 1e-6 * np.outer([1.0, 2.0, -3.0], direction)
    prototypes = z.mean(axis=0) + split
    stepped = prototype_step(z, q_step(z, prototypes, 2 * nu * ratio), prototypes)
    np.testing.assert_allclose(stepped - z.mean(axis=0), split / ratio, rtol=0, atol=1e-10)


# --- (d) Proposition 2 ------------------------------------------------------------------------


def posterior(z, prototypes, temperature):
    return SoftKMeans(temperature, tensor(prototypes)).log_posterior(tensor(z)).exp().numpy()


def column_shares(q):
    return q.mean(axis=0)


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
@settings(deadline=None)
def test_d1_the_logistic_posterior_with_this_weight_and_bias_is_the_target(seed, temperature):
    z, prototypes = blobs(seed)
    weights = 2 / temperature * prototypes
    bias = -(prototypes**2).sum(axis=1) / temperature
    np.testing.assert_allclose(bias, -temperature / 4 * (weights**2).sum(axis=1), rtol=1e-12)
    p = softmax(z @ weights.T + bias)
    np.testing.assert_allclose(p, posterior(z, prototypes, temperature), rtol=0, atol=1e-6)


@given(seeds, st.sampled_from([0.5, 1.0, 30.0]))
@settings(deadline=None)
def test_d1_is_unique_up_to_a_common_shift(seed, temperature):
    # log q_ik - log q_i0 is affine in z_i; its coefficients are read off by least squares.
    z, prototypes = blobs(seed)
    log_q = SoftKMeans(temperature, tensor(prototypes)).log_posterior(tensor(z)).numpy()
    design = np.column_stack([z, np.ones(len(z))])
    found = np.linalg.lstsq(design, log_q - log_q[:, :1], rcond=None)[0]
    weights = 2 / temperature * prototypes
    bias = -(prototypes**2).sum(axis=1) / temperature
    np.testing.assert_allclose(found[:-1].T, weights - weights[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[-1], bias - bias[0], rtol=0, atol=1e-8)


@given(seeds)
@settings(deadline=None)
def test_d1_a_common_shift_changes_nothing(seed):
    z, prototypes = blobs(seed)
    rng = np.random.default_rng(seed)
    weights = 2 * prototypes + rng.normal(size=3)
    bias = -(prototypes**2).sum(axis=1) + rng.normal()
    found = softmax(z @ weights.T + bias)
    np.testing.assert_allclose(found, posterior(z, prototypes, 1.0), rtol=0, atol=1e-10)


@given(seeds, st.sampled_from([0.1, 1.0, 30.0]))
@settings(deadline=None)
def test_d2_half_the_weight_is_double_the_temperature_and_q_is_p_squared(seed, temperature):
    z, prototypes = blobs(seed)
    weights = prototypes / temperature
    p = softmax(z @ weights.T - (prototypes**2).sum(axis=1) / (2 * temperature))
    double = posterior(z, prototypes, 2 * temperature)
    np.testing.assert_allclose(p, double, rtol=0, atol=1e-10)
    squared = double**2 / (double**2).sum(axis=1, keepdims=True)
    found = posterior(z, prototypes, temperature)
    np.testing.assert_allclose(found, squared, rtol=0, atol=1e-10)


@given(seeds, st.sampled_from([0.3, 1.0, 30.0]))
@settings(deadline=None)
def test_d3_the_optimal_bias_gives_q_up_to_the_prototype_norms(seed, temperature):
    # q_ik proportional to p_ik^2 exp(-T ||theta_k||^2) / share_k, in logarithms.
    z, prototypes = blobs(seed)
    q = posterior(z, prototypes, temperature)
    share = column_shares(q)
    weights = prototypes / temperature
    logits = z @ weights.T + np.log(share) / 2
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    rebuilt = softmax(2 * log_p - temperature * (weights**2).sum(axis=1) - np.log(share))
    np.testing.assert_allclose(q, rebuilt, rtol=0, atol=1e-8)


def test_d3_posterior_is_not_the_target_and_may_disagree_on_the_label():
    # Prototypes of unequal norms: the reason labels are the argmax of Q.
    z, _ = blobs(0)
    prototypes = np.array([[0.1, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, -3.0, 1.0]])
    q = posterior(z, prototypes, 1.0)
    p = softmax(z @ prototypes.T + np.log(column_shares(q)) / 2)
    assert np.abs(p - q).max() > 0.1
    assert (p.argmax(axis=1) != q.argmax(axis=1)).any()
    np.testing.assert_array_equal(q.argmax(axis=1), nearest(z, prototypes))


# --- (g) limits of the temperature ------------------------------------------------------------


def lloyd(z, prototypes, steps):
    """Trajectory of Lloyd's algorithm; every cluster must keep a sample."""
    trajectory = []
    for _ in range(steps):
        labels = nearest(z, prototypes)
        prototypes = np.array([z[labels == j].mean(axis=0) for j in range(len(prototypes))])
        trajectory.append(prototypes)
    return trajectory


@pytest.mark.parametrize("seed", range(5))
def test_small_temperature_follows_lloyd(seed):
    z, prototypes = blobs(seed, n=200)
    trajectory = lloyd(z, prototypes, 25)
    for expected in trajectory:
        prototypes = prototype_step(z, q_step(z, prototypes, 1e-9), prototypes)
        np.testing.assert_allclose(prototypes, expected, rtol=0, atol=1e-13)
    assert not np.allclose(trajectory[0], trajectory[-1], atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_module_at_small_temperature_follows_lloyd(seed):
    z, prototypes = blobs(seed, n=200)
    model = started(z, nearest(z, prototypes), 4, 1e-9)
    # The first step repeats the initial labels with the (here unchanged) embeddings.
    for epoch, expected in enumerate(lloyd(z, prototypes, 25)):
        assert model.e_step(tensor(z), epoch)["n_reseeded"] == 0
        np.testing.assert_allclose(model.prototypes.numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 5, 25])
def test_small_temperature_follows_sklearns_kmeans(steps):
    z, init = blobs(0, n=200)
    reference = KMeans(4, init=init, n_init=1, max_iter=steps, tol=0, algorithm="lloyd").fit(z)
    prototypes = init
    for _ in range(steps):
        prototypes = prototype_step(z, q_step(z, prototypes, 1e-9), prototypes)
    np.testing.assert_allclose(prototypes, reference.cluster_centers_, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_converged_small_temperature_labels_are_sklearns(seed):
    z, init = blobs(seed, n=200)
    reference = KMeans(4, init=init, n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(z)
    model = started(z, nearest(z, init), 4, 1e-9)
    for epoch in range(60):
        report = model.e_step(tensor(z), epoch)
    labels = model.log_posterior(tensor(z)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(labels, reference.labels_)
    # E / (N T) -> (inertia - sum ||z||^2) / (N T).
    expected = (reference.inertia_ - (z**2).sum()) / (len(z) * 1e-9)
    np.testing.assert_allclose(report["objective"], expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_large_temperature_gives_uniform_targets_and_merged_prototypes(seed):
    z, prototypes = blobs(seed)
    temperature = 1e12
    q = q_step(z, prototypes, temperature)
    distances = numpy_distances(z, prototypes)
    np.testing.assert_allclose(q, 0.25, rtol=2 * np.ptp(distances) / temperature, atol=0)
    merged = prototype_step(z, q, prototypes)
    np.testing.assert_allclose(merged, np.tile(z.mean(axis=0), (4, 1)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("ratio", [2.0, 100.0, 1e12])
def test_module_above_the_critical_temperature_merges_its_prototypes(ratio):
    # Merging, not emptiness: no cluster loses its weight here, so nothing is to be reseeded.
    z, prototypes = blobs(0)
    model = started(z, nearest(z, prototypes), 4, 2 * top_direction(z)[0] * ratio)
    reports = [model.e_step(tensor(z), epoch) for epoch in range(60)]
    objective = np.array([report["objective"] for report in reports])
    assert (np.diff(objective) <= 1e-8 * np.abs(objective[:-1])).all()
    np.testing.assert_allclose(reports[-1]["mutual_information"], 0, atol=1e-12)
    merged = np.tile(z.mean(axis=0), (4, 1))
    np.testing.assert_allclose(model.prototypes.numpy(), merged, rtol=0, atol=1e-6)


# --- the loss of the network step -------------------------------------------------------------


def stored_targets(model, z):
    """The targets as e_step stores them: float32."""
    q = model.log_posterior(tensor(z)).exp().numpy()
    return q.astype(np.float32).astype(np.float64)


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]), st.integers(1, 20))
@settings(deadline=None, max_examples=50)
def test_loss_equals_the_formula(seed, temperature, batch):
    model, z = iterated(seed % 5, temperature)
    index = np.random.default_rng(seed).permutation(len(z))[:batch]
    q, prototypes = stored_targets(model, z)[index], model.prototypes.numpy()
    # Embeddings other than those the targets were made from, as after a gradient step.
    new = z[index] + np.random.default_rng(seed).normal(size=(batch, 3))
    pulls, squares = q * numpy_distances(new, prototypes), (new**2).sum(axis=1)
    expected = (pulls.sum(axis=1) - squares).mean() / temperature
    found = model.loss(tensor(new), tensor(index))
    assert found.shape == ()
    # Sums of a row of float32 targets are 1 only to their precision.
    rounding = EPS32 * (pulls.sum() + 2 * squares.sum()) / (batch * temperature)
    np.testing.assert_allclose(found.item(), expected, rtol=0, atol=rounding)


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]), st.integers(1, 20))
@settings(deadline=None, max_examples=50)
def test_gradient_of_the_loss_is_the_mean_prototype(seed, temperature, batch):
    # -(2 / (b T)) sum_k q_ik theta'_k: along the prototype, whatever the embedding.
    model, z = iterated(seed % 5, temperature)
    index = np.random.default_rng(seed).permutation(len(z))[:batch]
    q, prototypes = stored_targets(model, z)[index], model.prototypes.numpy()
    new = tensor(np.random.default_rng(seed).normal(size=(batch, 3))).requires_grad_()
    model.loss(new, tensor(index)).backward()
    factor = -2 / (batch * temperature)
    expected = factor * (q @ prototypes)
    rounding = EPS32 * abs(factor) * np.abs(prototypes).max()
    np.testing.assert_allclose(new.grad.numpy(), expected, rtol=0, atol=rounding)


def test_loss_and_negative_entropy_add_up_to_the_energy():
    # On all samples, at the embeddings of the last step: E / (N T).
    model, z = iterated(0, 1.5)
    q = stored_targets(model, z)
    loss = model.loss(tensor(z), torch.arange(len(z))).item()
    total = loss + xlogy(q, q).sum() / len(z)
    scale = (z**2).sum(axis=1).mean() / 1.5
    np.testing.assert_allclose(total, model.energy(tensor(z)), rtol=0, atol=4 * EPS32 * scale)


def test_targets_and_prototypes_are_constants_of_the_loss():
    model, z = iterated(0, 1.5)
    assert list(model.parameters()) == []
    before = model.prototypes.clone()
    new = tensor(z).requires_grad_()
    model.loss(new, torch.arange(len(z))).backward()
    assert not model.prototypes.requires_grad
    assert torch.equal(model.prototypes, before)


def test_loss_picks_the_targets_of_the_given_samples():
    model, z = iterated(0, 0.5)
    index = torch.tensor([7, 3, 7])
    together = model.loss(tensor(z)[index], index).item()
    singly = [model.loss(tensor(z)[i : i + 1], torch.tensor([i])).item() for i in (7, 3, 7)]
    np.testing.assert_allclose(together, np.mean(singly), rtol=1e-12)


def test_loss_in_float32_agrees_with_float64():
    model, z = iterated(0, 1e-3)
    index = torch.arange(len(z))
    single = model.loss(tensor(z).float(), index)
    assert single.dtype == torch.float32
    terms = np.abs(z @ model.prototypes.numpy().T).max() / 1e-3
    expected = model.loss(tensor(z), index).item()
    np.testing.assert_allclose(single.item(), expected, rtol=0, atol=10 * EPS32 * terms)


# --- start, warm-up and steps -----------------------------------------------------------------


def test_start_puts_the_prototypes_at_the_cluster_means():
    z, prototypes = blobs(6)
    labels = nearest(z, prototypes)
    model = started(z, labels, 4, 1.0)
    expected = em_means(z, one_hot(labels, 4))
    assert model.prototypes.dtype == torch.float64
    np.testing.assert_allclose(model.prototypes.numpy(), expected, rtol=0, atol=1e-13)


def test_step_uses_the_old_targets_with_the_new_embeddings():
    z, prototypes = blobs(7)
    labels = nearest(z, prototypes)
    model = started(z, labels, 4, 1.0)
    new = z + np.random.default_rng(0).normal(size=z.shape)
    model.e_step(tensor(new), 0)
    np.testing.assert_allclose(
        model.prototypes.numpy(), em_means(new, one_hot(labels, 4)), rtol=0, atol=1e-13
    )
    q = numpy_q(new, model.prototypes.numpy(), 1.0)
    newer = new[::-1]
    model.e_step(tensor(newer), 1)
    # The targets are stored in float32.
    atol = EPS32 * np.abs(newer).max()
    np.testing.assert_allclose(model.prototypes.numpy(), em_means(newer, q), rtol=0, atol=atol)


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_warm_up_keeps_the_hard_targets(temperature):
    z, prototypes = blobs(8)
    labels = nearest(z, prototypes)
    hard = one_hot(labels, 4)
    model = started(z, labels, 4, temperature)
    rng = np.random.default_rng(0)
    for epoch in range(3):
        z = z + rng.normal(size=z.shape)
        report = model.e_step(tensor(z), epoch, labels=tensor(labels))
        assert report["n_reseeded"] == 0
        means = em_means(z, hard)
        np.testing.assert_allclose(model.prototypes.numpy(), means, rtol=0, atol=1e-13)
        new = tensor(z).requires_grad_()
        loss = model.loss(new, torch.arange(len(z)))
        loss.backward()
        pulls = (hard * numpy_distances(z, means)).sum()
        scale = len(z) * temperature
        expected = (pulls - (z**2).sum()) / scale
        rounding = EPS32 * (pulls + 2 * (z**2).sum()) / scale
        np.testing.assert_allclose(loss.item(), expected, rtol=0, atol=rounding)
        gradient = -2 / scale * means[labels]
        np.testing.assert_allclose(new.grad.numpy(), gradient, rtol=2 * EPS32)


def test_step_after_the_warm_up_starts_from_the_hard_targets():
    z, prototypes = blobs(9)
    labels = nearest(z, prototypes)
    model = started(z, labels, 4, 1.0)
    model.e_step(tensor(z), 0, labels=tensor(labels))
    model.e_step(tensor(z), 1)
    means = em_means(z, one_hot(labels, 4))
    np.testing.assert_allclose(model.prototypes.numpy(), means, rtol=0, atol=1e-13)
    model.e_step(tensor(z), 2)
    atol = EPS32 * np.abs(z).max()
    expected = em_means(z, numpy_q(z, means, 1.0))
    np.testing.assert_allclose(model.prototypes.numpy(), expected, rtol=0, atol=atol)


def test_step_reseeds_a_cluster_without_samples():
    z = np.array([[0.0], [1.0], [5.0], [6.0], [9.0]])
    model = SoftKMeans(1e-3, tensor(np.array([[0.0], [0.0], [1000.0]])))
    model.start(tensor(z), tensor(np.array([0, 0, 1, 1, 1])))
    assert model.e_step(tensor(z), 0)["n_reseeded"] == 1
    assert set(nearest(z, model.prototypes.numpy())) == {0, 1, 2}
    assert np.isfinite(model.prototypes.numpy()).all()


def test_one_cluster_is_the_mean():
    z, _ = blobs(0)
    model = started(z, np.zeros(len(z), dtype=np.int64), 1, 2.0)
    for epoch in range(3):
        report = model.e_step(tensor(z), epoch)
        mean = z.mean(axis=0)
        np.testing.assert_allclose(model.prototypes.numpy(), mean[None], rtol=0, atol=1e-13)
        assert report["mutual_information"] == 0
        assert report["n_reseeded"] == 0
        # Q = 1, so E / (N T) = -||mean||^2 / T.
        np.testing.assert_allclose(report["objective"], -(mean**2).sum() / 2, rtol=1e-12)
    assert torch.equal(model.log_posterior(tensor(z)), torch.zeros(len(z), 1).double())


def test_temperature_of_the_official_code_gives_finite_numbers():
    # lam K = 1e-3: the logits are in the thousands, and float32 would underflow.
    model, z = iterated(0, 1e-3, steps=10)
    log_q = model.log_posterior(tensor(z))
    assert torch.isfinite(log_q).all()
    np.testing.assert_allclose(log_q.exp().sum(dim=1), 1, rtol=1e-14)
    assert torch.isfinite(model.loss(tensor(z), torch.arange(len(z))))
