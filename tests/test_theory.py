"""Targets, mutual information and assignments against their theory.

P are posteriors and Q targets, one row a sample; the share of a cluster is the mean of its column.
Everything on the right-hand side of a comparison is NumPy or SciPy, from the formulas.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, logsumexp, softmax, xlogy
from sklearn.cluster import MiniBatchKMeans

from skdeepcluster.assignments import (
    log_soft_assignment,
    log_student_t,
    logistic_form,
    running_means,
    squared_distances,
)
from skdeepcluster.information import entropy, kl_divergence, mi_adm_bound, mutual_information
from skdeepcluster.targets import (
    dec_target,
    depict_target,
    exact_mi_adm_target,
    mi_adm_target,
)

seeds = st.integers(0, 2**32 - 1)
gammas = st.sampled_from([0.25, 0.5, 1.0, 2.0])
temperatures = st.sampled_from([0.01, 0.1, 0.5, 2.0, 10.0])
few = settings(deadline=None, max_examples=50)

TARGETS = {
    "mi_adm": mi_adm_target,
    "exact": exact_mi_adm_target,
    "depict": depict_target,
    "depict_quarter": lambda log_p: depict_target(log_p, gamma=0.25),
    "dec": dec_target,
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


# --- instances --------------------------------------------------------------------------------


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


def log_posteriors(seed, n=None, k=None):
    """Log-posteriors of any sharpness, balanced or not; p is between e^-150 and 1."""
    rng = np.random.default_rng(seed)
    n = rng.integers(2, 16) if n is None else n
    k = rng.integers(2, 6) if k is None else k
    logits = 10 ** rng.uniform(-1, 1) * rng.normal(size=(n, k))
    return log_softmax(logits + rng.choice([0, 1, 5]) * rng.normal(size=k), axis=1)


def extreme_posteriors(seed):
    """Posteriors with exact zeros, repeated rows and clusters that hardly exist."""
    rng = np.random.default_rng(seed)
    n, k = rng.integers(1, 10), rng.integers(2, 6)
    logits = 10 ** rng.uniform(-2, 3) * rng.normal(size=(n, k))
    logits += 10 ** rng.uniform(-1, 3) * rng.normal(size=k)
    logits[rng.random((n, k)) < rng.choice([0, 0.3])] = -np.inf
    logits[np.isinf(logits).all(axis=1), 0] = 0.0
    p = softmax(logits[rng.integers(0, n, 2 * n)], axis=1)
    # Subnormal numbers have no digits to compare.
    return np.where(p < 1e-300, 0, p)


def log_of(p):
    """Logarithms as a tensor; that of 0 is -inf, without a warning."""
    return tensor(p).log()


def simplex_rows(seed, shape):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[1]), size=shape[0])


def one_hot(labels, k):
    return np.eye(k)[labels]


def cyclic(seed, k=4, repeats=3):
    """Every row is a shift of one distribution, and every shift is there equally often."""
    rng = np.random.default_rng(seed)
    base = rng.dirichlet(np.ones(k))
    rows = np.array([np.roll(base, shift) for shift in range(k)] * repeats)
    return rows[rng.permutation(len(rows))]


def balanced(seed, n=12, k=3):
    """Posteriors whose columns have equal sums, and unequal sums of squares (Sinkhorn)."""
    p = np.exp(log_posteriors(seed, n, k)) + 0.05
    for _ in range(500):
        p *= (n / k) / p.sum(axis=0)
        p /= p.sum(axis=1, keepdims=True)
    return p


# --- the formulas in NumPy --------------------------------------------------------------------


def normalised(weights):
    return weights / weights.sum(axis=1, keepdims=True)


def numpy_mi_adm(p):
    return normalised(p**2 / np.sqrt((p**2).sum(axis=0)))


def numpy_dec(p, eta=1.0):
    """DEC's target for eta = 1: a step of length eta along N dI/dp = log(p / share)."""
    return normalised(p * (p / p.mean(axis=0)) ** eta)


def numpy_depict(p, gamma):
    return normalised(p / p.sum(axis=0) ** (gamma / (1 + gamma)))


def numpy_exact(p):
    """Target of MI-ADM by Newton's method on t = log of the shares.

    max_Q A(P, Q) = min over shares of mean_i log sum_k p_ik^2 / share_k; it is convex in t, with
    a multiplier of 1 on sum_k e^t = 1.
    """
    logits = 2 * np.log(p)

    def gradient(t):
        return np.exp(t) - softmax(logits - t, axis=1).mean(axis=0)

    def hessian(t):
        q = softmax(logits - t, axis=1)
        return np.diag(np.exp(t) + q.mean(axis=0)) - q.T @ q / len(q)

    found = optimize.root(gradient, np.log(p.mean(axis=0)), jac=hessian, tol=1e-14)
    assert np.abs(gradient(found.x)).max() < 1e-12
    return softmax(logits - found.x, axis=1)


def numpy_entropy(p):
    return -xlogy(p, p).sum(axis=-1)


def numpy_information(p):
    return numpy_entropy(p.mean(axis=0)) - numpy_entropy(p).mean()


def numpy_kl(q, p):
    """(1/N) sum q log(q / p); q = 0 contributes nothing, whatever p is."""
    return (xlogy(q, q) - xlogy(q, p)).sum() / len(q)


def numpy_bound(q, p):
    """A(P, Q), term by term."""
    share = q.mean(axis=0)
    return xlogy(q, p).sum() / len(q) - xlogy(share, share).sum() - numpy_kl(q, p)


def depict_objective(q, p, gamma):
    share = q.mean(axis=0)
    return numpy_kl(q, p) + gamma * xlogy(share, share).sum()


def bound(q, p):
    return mi_adm_bound(tensor(q), log_of(p)).item()


def information(p):
    return mutual_information(tensor(p)).item()


def divergence(q, p):
    return kl_divergence(tensor(q), log_of(p)).item()


# --- entropy, mutual information, divergence --------------------------------------------------


@given(seeds)
@few
def test_entropy_equals_scipys(seed):
    p = extreme_posteriors(seed)
    found = entropy(tensor(p)).numpy()
    assert found.shape == (len(p),)
    np.testing.assert_allclose(found, stats.entropy(p, axis=1), rtol=0, atol=1e-13)


def test_entropy_of_a_vector_is_a_scalar_and_zeros_count_nothing():
    assert entropy(tensor([0.5, 0.5, 0.0])).shape == ()
    np.testing.assert_allclose(entropy(tensor([0.5, 0.5, 0.0])).item(), np.log(2), rtol=1e-15)
    assert entropy(tensor([0.0, 1.0, 0.0])).item() == 0.0


@given(seeds)
@few
def test_information_is_the_mean_divergence_of_the_rows_from_the_shares(seed):
    p = extreme_posteriors(seed)
    rows = stats.entropy(p, np.broadcast_to(p.mean(axis=0), p.shape), axis=1)
    np.testing.assert_allclose(information(p), rows.mean(), rtol=0, atol=1e-13)


@given(seeds)
@few
def test_information_lies_between_zero_and_the_logs_of_k_and_n(seed):
    p = extreme_posteriors(seed)
    # Equal rows cannot be told apart, so N is the number of different ones.
    distinct = len(np.unique(p, axis=0))
    assert -1e-14 <= information(p) <= np.log(min(p.shape[1], distinct)) + 1e-14


def test_information_reaches_its_bounds():
    assert information(np.full((5, 4), 0.25)) == pytest.approx(0, abs=1e-15)
    np.testing.assert_allclose(information(one_hot([0, 1, 2] * 4, 3)), np.log(3), rtol=1e-15)
    # Fewer samples than clusters: log N.
    np.testing.assert_allclose(information(one_hot([4, 1], 5)), np.log(2), rtol=1e-15)
    # Equal rows say nothing about the sample, however sharp.
    assert information(one_hot([1] * 6, 3)) == pytest.approx(0, abs=1e-15)


def test_information_of_hard_labels_is_the_entropy_of_the_sizes():
    labels = np.repeat([0, 1, 2], [1, 4, 7])
    expected = stats.entropy([1, 4, 7])
    np.testing.assert_allclose(information(one_hot(labels, 3)), expected, rtol=1e-14)


@given(seeds)
@few
def test_divergence_equals_scipys_and_is_not_symmetric(seed):
    log_p = log_posteriors(seed)
    p, q = np.exp(log_p), simplex_rows(seed, log_p.shape)
    found = kl_divergence(tensor(q), tensor(log_p))
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), stats.entropy(q, p, axis=1).mean(), rtol=1e-12)
    assert divergence(p, p) == pytest.approx(0, abs=1e-14)


def test_divergence_counts_no_zeros_of_q_and_is_infinite_where_only_p_is_zero():
    p = np.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    q = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    expected = (np.log(2) + np.log(4 / 3) / 2) / 2
    np.testing.assert_allclose(divergence(q, p), expected, rtol=1e-14)
    assert divergence(p, q) == np.inf


# --- Proposition 1: the three faces of A ------------------------------------------------------


@given(seeds)
@few
def test_bound_equals_its_three_terms(seed):
    log_p = log_posteriors(seed)
    q = simplex_rows(seed, log_p.shape)
    found = mi_adm_bound(tensor(q), tensor(log_p))
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), numpy_bound(q, np.exp(log_p)), rtol=1e-12, atol=1e-13)


@given(seeds)
@few
def test_bound_is_information_of_q_less_twice_the_divergence(seed):
    log_p = log_posteriors(seed)
    p, q = np.exp(log_p), simplex_rows(seed, log_p.shape)
    expected = numpy_information(q) - 2 * numpy_kl(q, p)
    np.testing.assert_allclose(bound(q, p), expected, rtol=1e-12, atol=1e-13)
    found = information(q) - 2 * divergence(q, p)
    np.testing.assert_allclose(bound(q, p), found, rtol=1e-12, atol=1e-13)


@given(seeds)
@few
def test_bound_at_q_equal_to_p_is_the_information_of_p(seed):
    p = extreme_posteriors(seed)
    np.testing.assert_allclose(bound(p, p), numpy_information(p), rtol=0, atol=1e-13)


@given(seeds)
@few
def test_bound_is_depicts_objective_with_gamma_a_half_and_half_the_entropy(seed):
    log_p = log_posteriors(seed)
    p, q = np.exp(log_p), simplex_rows(seed, log_p.shape)
    expected = -2 * (depict_objective(q, p, 0.5) + numpy_entropy(q).mean() / 2)
    np.testing.assert_allclose(bound(q, p), expected, rtol=1e-12, atol=1e-13)


# --- the targets against their formulas -------------------------------------------------------


@given(seeds)
@few
def test_closed_form_equals_its_formula(seed):
    log_p = log_posteriors(seed)
    found = mi_adm_target(tensor(log_p)).numpy()
    np.testing.assert_allclose(found, numpy_mi_adm(np.exp(log_p)), rtol=1e-11)


@given(seeds)
@few
def test_dec_target_equals_its_formula(seed):
    log_p = log_posteriors(seed)
    p = np.exp(log_p)
    found = dec_target(tensor(log_p)).numpy()
    np.testing.assert_allclose(found, normalised(p**2 / p.sum(axis=0)), rtol=1e-11)


@given(seeds, gammas)
@few
def test_depict_target_has_the_exponent_gamma_over_one_plus_gamma(seed, gamma):
    log_p = log_posteriors(seed)
    found = depict_target(tensor(log_p), gamma=gamma).numpy()
    np.testing.assert_allclose(found, numpy_depict(np.exp(log_p), gamma), rtol=1e-11)


@given(seeds)
@few
def test_depict_target_has_the_published_exponent_by_default(seed):
    log_p = log_posteriors(seed)
    p = np.exp(log_p)
    found = depict_target(tensor(log_p)).numpy()
    np.testing.assert_allclose(found, normalised(p / np.sqrt(p.sum(axis=0))), rtol=1e-11)


def test_depict_target_without_balance_is_p():
    p = np.exp(log_posteriors(0))
    np.testing.assert_allclose(depict_target(log_of(p), gamma=0.0).numpy(), p, rtol=1e-13)


@given(seeds)
@few
def test_exact_target_equals_newtons_method_on_the_shares(seed):
    log_p = log_posteriors(seed)
    found = exact_mi_adm_target(tensor(log_p)).numpy()
    np.testing.assert_allclose(found, numpy_exact(np.exp(log_p)), rtol=0, atol=1e-10)


def test_targets_by_hand():
    # Column sums 1.2 and 0.8, of squares 0.8 and 0.4.
    p = np.array([[0.8, 0.2], [0.4, 0.6]])
    squares = p**2
    for target, columns in [
        (mi_adm_target, squares / np.sqrt([0.8, 0.4])),
        (dec_target, squares / [1.2, 0.8]),
        (depict_target, p / np.sqrt([1.2, 0.8])),
    ]:
        np.testing.assert_allclose(target(log_of(p)).numpy(), normalised(columns), rtol=1e-14)


# --- the exact target is the maximiser of A ---------------------------------------------------


@given(seeds)
@few
def test_exact_target_is_stationary(seed):
    # One condition per row: q proportional to p^2 / share of q. In logarithms, for small q too.
    log_p = log_posteriors(seed)
    q = exact_mi_adm_target(tensor(log_p)).numpy()
    expected = log_softmax(2 * log_p - np.log(q.mean(axis=0)), axis=1)
    np.testing.assert_allclose(np.log(q), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rare", [-20.0, -80.0, -200.0, -300.0])
def test_exact_target_is_stationary_for_a_cluster_that_hardly_exists(rare):
    # Its share, about e^rare, has to be reached from far: p^2 is not even a float64 at e^-600.
    logits = np.random.default_rng(0).normal(size=(9, 3))
    logits[:, 2] += rare
    log_p = log_softmax(logits, axis=1)
    q = exact_mi_adm_target(tensor(log_p)).numpy()
    assert (q[:, 2] > 0).all()
    expected = log_softmax(2 * log_p - np.log(q.mean(axis=0)), axis=1)
    np.testing.assert_allclose(np.log(q), expected, rtol=0, atol=1e-9)


@given(seeds)
@few
def test_no_duality_gap_certifies_the_exact_target(seed):
    # A(P, Q) <= mean_i log sum_k p_ik^2 / s_k for all Q and all s on the simplex; equality proves
    # that both are optimal, zeros in P or not.
    log_p = log_of(extreme_posteriors(seed)).numpy()
    q = exact_mi_adm_target(tensor(log_p)).numpy()
    share = q.mean(axis=0)
    alive = share > 0
    dual = logsumexp(2 * log_p[:, alive] - np.log(share[alive]), axis=1).mean()
    found = mi_adm_bound(tensor(q), tensor(log_p)).item()
    np.testing.assert_allclose(found, dual, rtol=1e-12, atol=1e-12)


@given(seeds, st.floats(-3, 0))
@settings(deadline=None, max_examples=50)
def test_any_other_target_has_a_lower_bound_by_two_divergences(seed, power):
    # A(P, Q*) - A(P, Q) = KL(Q || Q*) + KL(shares of Q || shares of Q*): A is strictly concave.
    log_p = log_posteriors(seed)
    p = np.exp(log_p)
    best = exact_mi_adm_target(tensor(log_p)).numpy()
    step = 10**power
    other = (1 - step) * best + step * simplex_rows(seed, p.shape)
    drop = bound(best, p) - bound(other, p)
    shares = numpy_kl(other.mean(axis=0)[None], best.mean(axis=0)[None])
    assert drop > 0
    np.testing.assert_allclose(drop, numpy_kl(other, best) + shares, rtol=1e-8, atol=1e-12)


@given(seeds)
@few
def test_moving_mass_within_one_row_does_not_raise_the_bound(seed):
    # To both sides: a maximum, not only a point that is stationary.
    log_p = log_posteriors(seed)
    p = np.exp(log_p)
    best = exact_mi_adm_target(tensor(log_p)).numpy()
    rng = np.random.default_rng(seed)
    for _ in range(10):
        row, (a, b) = rng.integers(len(p)), rng.choice(p.shape[1], 2, replace=False)
        other = best.copy()
        moved = rng.random() * best[row, a]
        other[row, a] -= moved
        other[row, b] += moved
        assert bound(other, p) <= bound(best, p) + 1e-13


@pytest.mark.parametrize("seed", range(5))
def test_exact_target_agrees_with_scipys_optimiser(seed):
    n, k = 4, 3
    log_p = log_softmax(1.5 * np.random.default_rng(seed).normal(size=(n, k)), axis=1)

    def negative_bound(logits):
        q = softmax(logits.reshape(n, k), axis=1)
        slope = (2 * log_p - np.log(q) - np.log(q.mean(axis=0)) - 2) / n
        slope = q * (slope - (q * slope).sum(axis=1, keepdims=True))
        return -numpy_bound(q, np.exp(log_p)), -slope.ravel()

    # BFGS ends where rounding hides any progress: 1e-7 in Q is 1e-14 in A.
    solution = optimize.minimize(
        negative_bound, log_p.ravel(), jac=True, method="BFGS", options={"gtol": 1e-11}
    )
    expected = softmax(solution.x.reshape(n, k), axis=1)
    found = exact_mi_adm_target(tensor(log_p)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(bound(found, np.exp(log_p)), -solution.fun, rtol=0, atol=1e-13)


# --- the closed form: an approximation, and of what -------------------------------------------


@given(seeds)
@few
def test_closed_form_is_exact_where_the_clusters_are_alike(seed):
    p = cyclic(seed)
    expected = normalised(p**2)
    for target in (mi_adm_target, exact_mi_adm_target, dec_target):
        found = target(log_of(p)).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@given(seeds)
@few
def test_closed_form_minimises_its_surrogate_exactly(seed):
    # With the balance linear in Q, KL(Q || R) + (1/2) sum_k share_k log m_k, where R is P^2 with
    # rows normalised and m_k the mean of p^2. Gibbs: any other Q is worse by KL(other || Q).
    log_p = log_posteriors(seed)
    p = np.exp(log_p)
    squares, log_squares = normalised(p**2), np.log((p**2).mean(axis=0))

    def surrogate(q):
        return numpy_kl(q, squares) + q.mean(axis=0) @ log_squares / 2

    best = mi_adm_target(tensor(log_p)).numpy()
    other = simplex_rows(seed, p.shape)
    rise = surrogate(other) - surrogate(best)
    assert rise > 0
    np.testing.assert_allclose(rise, numpy_kl(other, best), rtol=1e-11)


@given(seeds)
@few
def test_exact_target_has_no_lower_bound_than_the_closed_form(seed):
    p = extreme_posteriors(seed)
    exact, closed = exact_mi_adm_target(log_of(p)).numpy(), mi_adm_target(log_of(p)).numpy()
    assert bound(exact, p) >= bound(closed, p) - 1e-12


def test_gap_of_the_closed_form_is_small_and_real():
    gaps = []
    for seed in range(100):
        p = np.exp(log_posteriors(seed))
        exact, closed = exact_mi_adm_target(log_of(p)).numpy(), mi_adm_target(log_of(p)).numpy()
        gaps.append(bound(exact, p) - bound(closed, p))
    assert min(gaps) >= -1e-13
    assert 1e-6 < np.median(gaps) < 1e-3
    assert 1e-3 < max(gaps) < 0.03


@pytest.mark.parametrize("smallest", [0.0, 1e-12])
def test_closed_form_may_lose_information_where_the_exact_step_gains(smallest):
    # Why the guarantee of Proposition 3 needs the exact step. The numbers are from NumPy.
    p = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.7, 0.3], [0.0, 1.0]])
    log_p = log_of(p.clip(smallest))
    before = mutual_information(log_p.exp()).item()
    closed, exact = mi_adm_target(log_p), exact_mi_adm_target(log_p)
    assert before == pytest.approx(0.450884, abs=5e-7)
    assert mutual_information(closed).item() == pytest.approx(0.449871, abs=5e-7)
    assert mutual_information(exact).item() == pytest.approx(0.452731, abs=5e-7)
    assert mi_adm_bound(closed, log_p).item() - before == pytest.approx(-0.00375, abs=5e-6)
    assert mi_adm_bound(exact, log_p).item() - before == pytest.approx(0.00069, abs=5e-6)


# --- Proposition 3: the information under the alternation -------------------------------------


@given(seeds)
@few
def test_exact_step_never_lowers_the_information(seed):
    # I(Q) >= A(P, Q) >= A(P, P) = I(P).
    p = extreme_posteriors(seed)
    q = exact_mi_adm_target(log_of(p)).numpy()
    assert information(q) >= bound(q, p) - 1e-13
    assert bound(q, p) >= information(p) - 1e-12


@given(seeds)
@few
def test_exact_step_loses_at_most_twice_the_divergence_of_the_old_targets(seed):
    # I(Q+) >= I(Q) - 2 KL(Q || P), whatever Q was.
    log_p = log_posteriors(seed)
    new = exact_mi_adm_target(tensor(log_p)).numpy()
    rng = np.random.default_rng(seed)
    for step in (0.01, 0.1, 1.0):
        noise = step * rng.normal(size=log_p.shape)
        old = softmax(log_p + noise, axis=1)
        assert information(new) >= information(old) - 2 * divergence(old, np.exp(log_p)) - 1e-13


@pytest.mark.parametrize("seed", range(10))
def test_information_never_falls_with_free_posteriors(seed):
    # The parameter step attains P = Q. After many rounds the rows are one-hot, zeros and all.
    log_p = tensor(log_posteriors(seed, n=20, k=4))
    values = [mutual_information(log_p.exp()).item()]
    for _ in range(60):
        q = exact_mi_adm_target(log_p)
        values += [mi_adm_bound(q, log_p).item(), mutual_information(q).item()]
        log_p = q.log()
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] > values[0] + 1e-3


def logistic_log_p(z, coef):
    return log_softmax(z @ coef, axis=1)


def lower_cross_entropy(z, coef, q):
    """One step of gradient descent on -(1/N) sum q log p, halved until it helps."""
    log_p = logistic_log_p(z, coef)
    start, slope, rate = -(q * log_p).sum(), z.T @ (np.exp(log_p) - q), 1.0
    while -(q * logistic_log_p(z, coef - rate * slope)).sum() > start:
        rate /= 2
    return coef - rate * slope


@pytest.mark.parametrize("seed", range(5))
def test_bound_rises_with_a_logistic_posterior_too(seed):
    # Block ascent: the parameter step raises A by twice the drop of the cross-entropy, the exact
    # step by what it gains. Nothing is said of I(P) here.
    rng = np.random.default_rng(seed)
    z = np.column_stack([rng.normal(size=(30, 3)), np.ones(30)])
    coef = rng.normal(size=(4, 3))
    q = exact_mi_adm_target(tensor(logistic_log_p(z, coef))).numpy()
    values = [bound(q, np.exp(logistic_log_p(z, coef)))]
    for _ in range(20):
        old, coef = coef, lower_cross_entropy(z, coef, q)
        p = np.exp(logistic_log_p(z, coef))
        values.append(bound(q, p))
        drop = (q * (logistic_log_p(z, coef) - logistic_log_p(z, old))).sum() / len(z)
        np.testing.assert_allclose(values[-1] - values[-2], 2 * drop, rtol=1e-9, atol=1e-13)
        q = exact_mi_adm_target(log_of(p)).numpy()
        values.append(bound(q, p))
    assert (np.diff(values) >= -1e-13).all()
    assert values[-1] > values[0] + 0.01


# --- DEC's target: a step up the information --------------------------------------------------


@given(seeds)
@few
def test_dec_target_never_lowers_the_information(seed):
    # I is convex in the rows of P, and the step raises the mean of its gradient in every row.
    p = extreme_posteriors(seed)
    assert information(dec_target(log_of(p)).numpy()) >= information(p) - 1e-13


@pytest.mark.parametrize(
    "p",
    [
        [[1, 0], [1, 0], [1, 0], [0.7, 0.3], [0, 1]],  # where MI-ADM's closed form loses
        [[0, 1], [0, 1], [0, 1], [0, 1], [0.1, 0.9]],
        [[0.5, 0.5], [0.5 + 1e-9, 0.5 - 1e-9]],
        [[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9], [0.5, 0.5]],
        [[0.98, 0.01, 0.01]] * 50 + [[0, 0.5, 0.5]],
        [[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]],
        [[1e-300, 1.0], [1e-300, 1.0], [0.5, 0.5]],
    ],
)
def test_dec_target_never_lowers_the_information_of_adversarial_posteriors(p):
    p = np.array(p, dtype=float)
    assert information(dec_target(log_of(p)).numpy()) >= information(p) - 1e-15


def test_dec_target_resists_a_search_for_a_counterexample():
    def gain(logits):
        log_p = log_softmax(logits.reshape(5, 3), axis=1)
        q = dec_target(tensor(log_p)).numpy()
        return information(q) - information(np.exp(log_p))

    for seed in range(5):
        start = 3 * np.random.default_rng(seed).normal(size=15)
        found = optimize.minimize(gain, start, method="Nelder-Mead", options={"maxfev": 400})
        assert found.fun >= -1e-14


@given(seeds, st.floats(0, 5))
@few
def test_a_step_of_any_length_along_the_gradient_raises_the_information(seed, eta):
    p = np.exp(log_posteriors(seed))
    assert information(numpy_dec(p, eta)) >= information(p) - 1e-13


@given(seeds)
@few
def test_dec_target_is_the_step_of_length_one(seed):
    p = np.exp(log_posteriors(seed))
    np.testing.assert_allclose(dec_target(log_of(p)).numpy(), numpy_dec(p, 1.0), rtol=1e-11)


def test_the_gradient_of_information_is_the_log_ratio_to_the_share():
    # The direction that DEC's target follows; from torch, so that the package's I is also smooth.
    p = tensor(simplex_rows(0, (6, 3))).requires_grad_()
    mutual_information(p).backward()
    found, share = p.grad.numpy(), p.detach().numpy().mean(axis=0)
    np.testing.assert_allclose(6 * found, np.log(p.detach().numpy() / share), rtol=0, atol=1e-13)


def test_dec_target_may_lower_the_bound_of_mi_adm():
    # It is one undamped round of the exact target's fixed point, and may go too far.
    p = np.array([[0.0, 1.0]] * 4 + [[0.1, 0.9]])
    q = dec_target(log_of(p)).numpy()
    assert bound(q, p) == pytest.approx(numpy_information(p) - 0.006583, abs=1e-6)


# --- DEPICT's target: balance, not sharpness --------------------------------------------------


@given(seeds, gammas)
@few
def test_depict_target_minimises_its_surrogate_exactly(seed, gamma):
    # KL(Q || P) + a sum_k share of q_k log share of p_k, with a = gamma / (1 + gamma): 1/2 for 1.
    log_p = log_posteriors(seed)
    p = np.exp(log_p)

    def surrogate(q):
        return numpy_kl(q, p) + gamma / (1 + gamma) * q.mean(axis=0) @ np.log(p.mean(axis=0))

    best = depict_target(tensor(log_p), gamma=gamma).numpy()
    other = simplex_rows(seed, p.shape)
    rise = surrogate(other) - surrogate(best)
    assert rise > 0
    np.testing.assert_allclose(rise, numpy_kl(other, best), rtol=1e-11)


@given(seeds, gammas)
@few
def test_balanced_posteriors_are_a_fixed_point_of_depict_only(seed, gamma):
    p = balanced(seed)
    np.testing.assert_allclose(p.sum(axis=0), 4, rtol=1e-10)
    np.testing.assert_allclose(depict_target(log_of(p), gamma=gamma).numpy(), p, rtol=1e-9)
    # DEC's sharpens them instead.
    np.testing.assert_allclose(dec_target(log_of(p)).numpy(), normalised(p**2), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0])
def test_depict_target_does_not_raise_its_objective(gamma):
    # Not proven, but never seen to fail; fixed instances.
    for seed in range(200):
        p = np.exp(log_posteriors(seed))
        q = depict_target(log_of(p), gamma=gamma).numpy()
        assert depict_objective(q, p, gamma) <= depict_objective(p, p, gamma) + 1e-13


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0])
def test_depict_target_is_exact_for_equal_rows(gamma):
    # Then shares are rows, and the condition q = p q^-gamma is solved by q = p^(1 / (1 + gamma)).
    p = np.tile([0.98, 0.01, 0.005, 0.005], (3, 1))
    found = depict_target(log_of(p), gamma=gamma).numpy()
    np.testing.assert_allclose(found, normalised(p ** (1 / (1 + gamma))), rtol=1e-13)
    solution = found / found.mean(axis=0) ** -gamma / p
    np.testing.assert_allclose(solution, solution[0, 0], rtol=1e-12)


def test_published_exponent_is_not_for_gamma_a_half():
    # Exponent 1/2 overshoots where gamma = 1/2: the objective rises above that of P.
    p = np.tile([0.997, 0.001, 0.001, 0.001], (2, 1))
    wrong, right = depict_target(log_of(p)).numpy(), depict_target(log_of(p), gamma=0.5).numpy()
    start = depict_objective(p, p, 0.5)
    assert depict_objective(wrong, p, 0.5) > start + 0.02
    assert depict_objective(right, p, 0.5) < start - 1e-3


def test_depict_target_may_lose_information():
    # It moves mass to the small cluster, and that blurs the large one.
    p = np.array([[0.1, 0.9]] * 4 + [[1.0, 0.0]])
    before = information(p)
    after = information(depict_target(log_of(p)).numpy())
    assert after - before == pytest.approx(-0.045147, abs=1e-6)
    # DEC's target gains on the same posteriors.
    assert information(dec_target(log_of(p)).numpy()) > before + 0.05


@given(seeds)
@few
def test_depict_target_moves_every_row_to_the_smaller_of_two_clusters(seed):
    p = np.exp(log_posteriors(seed, k=2))
    q, small = depict_target(log_of(p)).numpy(), p.sum(axis=0).argmin()
    assert (q[:, small] >= p[:, small] * (1 - 1e-12)).all()


# --- invariants of all targets ----------------------------------------------------------------


@every_target
@given(seed=seeds)
@few
def test_rows_are_distributions(target, seed):
    q = target(log_of(extreme_posteriors(seed))).numpy()
    assert (q >= 0).all()
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=0, atol=1e-14)


@every_target
@given(seed=seeds)
@few
def test_order_of_samples_and_numbers_of_clusters_do_not_matter(target, seed):
    log_p = log_posteriors(seed)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(log_p.shape[0]), rng.permutation(log_p.shape[1])
    q = target(tensor(log_p)).numpy()
    shuffled = target(tensor(log_p[rows][:, columns])).numpy()
    np.testing.assert_allclose(shuffled, q[rows][:, columns], rtol=0, atol=1e-12)


@every_target
def test_repeating_every_sample_repeats_its_target(target):
    # Sums over samples enter as a factor that all clusters share.
    log_p = log_posteriors(1)
    q = target(tensor(log_p)).numpy()
    repeated = target(tensor(np.repeat(log_p, 3, axis=0))).numpy()
    np.testing.assert_allclose(repeated, np.repeat(q, 3, axis=0), rtol=0, atol=1e-12)


@every_target
def test_targets_keep_shape_and_dtype_and_leave_the_argument_alone(target):
    log_p = tensor(log_posteriors(2, n=7, k=3))
    before = log_p.clone()
    q = target(log_p)
    assert q.shape == (7, 3) and q.dtype == torch.float64
    assert torch.equal(log_p, before)


@every_target
@pytest.mark.parametrize("labels", [[0, 1, 2, 2, 2, 1], [0, 0, 0, 0, 0, 1]], ids=str)
def test_one_hot_posteriors_are_a_fixed_point(target, labels):
    # In the second, a cluster is empty.
    p = one_hot(labels, 3)
    np.testing.assert_array_equal(target(log_of(p)).numpy(), p)


@every_target
@pytest.mark.parametrize("shape", [(1, 2), (6, 3), (5, 4)])
def test_uniform_posteriors_are_a_fixed_point(target, shape):
    p = np.full(shape, 1 / shape[1])
    np.testing.assert_allclose(target(log_of(p)).numpy(), p, rtol=1e-13)


@every_target
def test_an_empty_cluster_stays_empty_and_the_others_do_not_notice(target):
    log_p = log_posteriors(3, n=8, k=3)
    without = target(tensor(log_p)).numpy()
    found = target(tensor(np.insert(log_p, 1, -np.inf, axis=1))).numpy()
    np.testing.assert_array_equal(found[:, 1], 0)
    np.testing.assert_allclose(np.delete(found, 1, axis=1), without, rtol=0, atol=1e-12)


@every_target
def test_a_cluster_far_below_the_smallest_float_is_as_good_as_empty(target):
    # exp(-1e5) is 0: in linear space this would be 0 / 0.
    log_p = log_posteriors(3, n=8, k=3)
    without = target(tensor(log_p)).numpy()
    far = -1e5 - np.arange(8.0)
    found = target(tensor(np.insert(log_p, 1, far, axis=1))).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[:, 1], 0)
    np.testing.assert_allclose(np.delete(found, 1, axis=1), without, rtol=0, atol=1e-12)


@every_target
def test_very_negative_entries_give_the_hard_target(target):
    labels = np.array([0, 1, 2, 2, 0, 1])
    log_p = np.where(one_hot(labels, 3) == 1, 0.0, -1e5)
    np.testing.assert_array_equal(target(tensor(log_p)).numpy(), one_hot(labels, 3))


@every_target
def test_one_cluster_gets_everything(target):
    np.testing.assert_array_equal(target(torch.zeros(4, 1, dtype=torch.float64)).numpy(), 1)


@pytest.mark.parametrize("name", ["mi_adm", "exact", "dec"])
def test_one_sample_keeps_its_posterior(name):
    # Its share is its row: p^2 / sqrt(p^2) = p^2 / p = p. There is no information to gain.
    p = np.array([[0.7, 0.2, 0.1]])
    np.testing.assert_allclose(TARGETS[name](log_of(p)).numpy(), p, rtol=1e-12)


# --- Proposition 2: the soft assignment is a logistic posterior -------------------------------


def embeddings(seed, n=40, k=4, p=3):
    """Overlapping blobs, and prototypes drawn from the samples."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(k, p))[rng.integers(0, k, n)] + rng.normal(size=(n, p))
    return z, z[rng.choice(n, k, replace=False)].copy()


def soft_assignment(z, prototypes, temperature):
    """The package's softmax(-D / T)."""
    distances = squared_distances(tensor(z), tensor(prototypes))
    return log_soft_assignment(distances, temperature).exp().numpy()


def logistic(prototypes, temperature):
    """The package's weights and biases."""
    coef, intercept = logistic_form(tensor(prototypes), temperature)
    assert coef.shape == prototypes.shape and intercept.shape == (len(prototypes),)
    assert coef.dtype == intercept.dtype == torch.float64
    return coef.numpy(), intercept.numpy()


def nearest(z, prototypes):
    return cdist(z, prototypes).argmin(axis=1)


@given(seeds, temperatures)
@few
def test_soft_assignment_is_the_softmax_of_the_distances(seed, temperature):
    z, prototypes = embeddings(seed)
    expected = softmax(-cdist(z, prototypes, "sqeuclidean") / temperature, axis=1)
    found = soft_assignment(z, prototypes, temperature)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@given(seeds, temperatures)
@few
def test_d1_logistic_posterior_equals_the_soft_assignment(seed, temperature):
    z, prototypes = embeddings(seed)
    coef, intercept = logistic(prototypes, temperature)
    found = softmax(z @ coef.T + intercept, axis=1)
    expected = softmax(-cdist(z, prototypes, "sqeuclidean") / temperature, axis=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    # Between the package's two ways as well.
    same = soft_assignment(z, prototypes, temperature)
    np.testing.assert_allclose(found, same, rtol=0, atol=1e-10)


@given(seeds, temperatures)
@few
def test_d1_weights_and_biases_equal_their_formulas(seed, temperature):
    _, prototypes = embeddings(seed)
    coef, intercept = logistic(prototypes, temperature)
    np.testing.assert_allclose(coef, 2 / temperature * prototypes, rtol=1e-14)
    norms = (prototypes**2).sum(axis=1)
    np.testing.assert_allclose(intercept, -norms / temperature, rtol=1e-13)
    # The same bias in terms of the weights: -(T / 4) ||theta_k||^2.
    expected = -temperature / 4 * (coef**2).sum(axis=1)
    np.testing.assert_allclose(intercept, expected, rtol=1e-12)


@given(seeds, st.sampled_from([0.5, 2.0, 10.0]))
@few
def test_d1_is_unique_up_to_a_common_shift(seed, temperature):
    # log q_ik - log q_i0 is affine in z_i, and its coefficients can be read off: with more than
    # p + 1 samples in general position no other pair gives these posteriors.
    z, prototypes = embeddings(seed)
    logits = -cdist(z, prototypes, "sqeuclidean") / temperature
    design = np.column_stack([z, np.ones(len(z))])
    found, _, rank, _ = np.linalg.lstsq(design, logits - logits[:, :1], rcond=None)
    assert rank == 4
    coef, intercept = logistic(prototypes, temperature)
    np.testing.assert_allclose(coef - coef[0], found[:-1].T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(intercept - intercept[0], found[-1], rtol=0, atol=1e-9)


@given(seeds)
@few
def test_d1_a_shift_changes_the_posterior_unless_all_clusters_share_it(seed):
    z, prototypes = embeddings(seed)
    coef, intercept = logistic(prototypes, 2.0)
    rng = np.random.default_rng(seed)
    vector, number = rng.normal(size=3), rng.normal()
    expected = log_softmax(-cdist(z, prototypes, "sqeuclidean") / 2, axis=1)
    shared = log_softmax(z @ (coef + vector).T + intercept + number, axis=1)
    np.testing.assert_allclose(shared, expected, rtol=0, atol=1e-10)
    coef[0] += vector
    alone = log_softmax(z @ coef.T + intercept, axis=1)
    assert np.abs(alone - expected).max() > 1e-3


@given(seeds, temperatures)
@few
def test_d2_half_the_weights_and_biases_are_double_the_temperature(seed, temperature):
    z, prototypes = embeddings(seed)
    coef, intercept = logistic(prototypes, temperature)
    half = softmax(z @ coef.T / 2 + intercept / 2, axis=1)
    double = soft_assignment(z, prototypes, 2 * temperature)
    np.testing.assert_allclose(half, double, rtol=0, atol=1e-10)
    q = soft_assignment(z, prototypes, temperature)
    np.testing.assert_allclose(q, normalised(half**2), rtol=0, atol=1e-10)
    doubled_coef, doubled_intercept = logistic(prototypes, 2 * temperature)
    np.testing.assert_allclose(doubled_coef, coef / 2, rtol=1e-15)
    np.testing.assert_allclose(doubled_intercept, intercept / 2, rtol=1e-14)


def papers_log_posterior(z, prototypes, temperature):
    """Weights theta' / T and the paper's bias, half the log of the share in Q."""
    coef = logistic(prototypes, temperature)[0] / 2
    share = soft_assignment(z, prototypes, temperature).mean(axis=0)
    return log_softmax(z @ coef.T + np.log(share) / 2, axis=1), coef, share


@given(seeds, st.sampled_from([0.5, 2.0, 10.0]))
@few
def test_d3_papers_bias_gives_the_target_up_to_the_norms_of_the_weights(seed, temperature):
    # q proportional to p^2 exp(-T ||theta||^2) / share, where T is lambda K.
    z, prototypes = embeddings(seed)
    log_p, coef, share = papers_log_posterior(z, prototypes, temperature)
    dropped = temperature * (coef**2).sum(axis=1)
    found = softmax(2 * log_p - dropped - np.log(share), axis=1)
    expected = soft_assignment(z, prototypes, temperature)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_d3_labels_of_the_papers_posterior_may_differ():
    # A short prototype loses to a long one: the norm that D1 subtracts is not there.
    z, _ = embeddings(0)
    prototypes = np.array([[0.1, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, -3.0, 1.0]])
    log_p, _, _ = papers_log_posterior(z, prototypes, 1.0)
    q = soft_assignment(z, prototypes, 1.0)
    np.testing.assert_array_equal(q.argmax(axis=1), nearest(z, prototypes))
    assert (log_p.argmax(axis=1) != q.argmax(axis=1)).mean() > 0.1


def test_d3_labels_agree_for_equal_norms_and_equal_shares():
    # A square, and samples with its symmetry: what the bias drops is the same for all clusters.
    prototypes = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    quarter = np.random.default_rng(0).normal(size=(20, 2))
    z = np.concatenate([quarter * signs for signs in prototypes])
    log_p, _, share = papers_log_posterior(z, prototypes, 0.5)
    np.testing.assert_allclose(share, 0.25, rtol=1e-12)
    np.testing.assert_array_equal(log_p.argmax(axis=1), nearest(z, prototypes))
    # With Q proportional to P^2, as for double the temperature.
    expected = soft_assignment(z, prototypes, 0.5)
    np.testing.assert_allclose(normalised(np.exp(2 * log_p)), expected, rtol=0, atol=1e-12)


# --- Student's t ------------------------------------------------------------------------------


@given(seeds)
@few
def test_student_t_equals_its_formula_and_scipys_density(seed):
    z, prototypes = embeddings(seed)
    distances = cdist(z, prototypes, "sqeuclidean")
    found = log_student_t(tensor(distances)).exp().numpy()
    np.testing.assert_allclose(found, normalised(1 / (1 + distances)), rtol=1e-13)
    density = stats.t(df=1).pdf(np.sqrt(distances))
    np.testing.assert_allclose(found, normalised(density), rtol=1e-12)


@given(seeds)
@few
def test_student_t_prefers_the_nearest_and_renumbers_with_the_clusters(seed):
    z, prototypes = embeddings(seed)
    distances = cdist(z, prototypes, "sqeuclidean")
    found = log_student_t(tensor(distances)).numpy()
    np.testing.assert_array_equal(found.argmax(axis=1), nearest(z, prototypes))
    order = np.random.default_rng(seed).permutation(len(prototypes))
    renumbered = log_student_t(tensor(distances[:, order])).numpy()
    np.testing.assert_allclose(renumbered, found[:, order], rtol=0, atol=1e-14)
    # A row does not depend on the other samples.
    alone = log_student_t(tensor(distances[:1])).numpy()
    np.testing.assert_allclose(alone, found[:1], rtol=0, atol=1e-15)


def test_student_t_of_equal_distances_is_uniform():
    for distance in (0.0, 1.0, 1e12, 1e300):
        found = log_student_t(torch.full((2, 5), distance, dtype=torch.float64)).exp().numpy()
        np.testing.assert_allclose(found, 0.2, rtol=1e-12)


def test_student_t_is_exact_at_the_prototype_and_has_heavy_tails():
    # 1 / 1 against 1 / 4, and far out inverse distances, where a softmax would be one-hot.
    found = log_student_t(tensor([[0.0, 3.0], [1e12, 3e12]])).exp().numpy()
    np.testing.assert_allclose(found, [[0.8, 0.2], [0.75, 0.25]], rtol=1e-11)


# --- DCN's running means ----------------------------------------------------------------------


def one_by_one(z, labels, means, counts):
    """DCN's update, sample after sample."""
    means, counts = means.copy(), counts.copy()
    for sample, label in zip(z, labels, strict=True):
        counts[label] += 1
        means[label] = (1 - 1 / counts[label]) * means[label] + sample / counts[label]
    return means, counts


def update(z, labels, means, counts):
    """The package's update."""
    found = running_means(tensor(z), torch.from_numpy(labels), tensor(means), tensor(counts))
    return found[0].numpy(), found[1].numpy()


@given(seeds, st.sampled_from([0.0, 1.0, 100.0]))
@few
def test_running_means_equal_the_update_sample_by_sample(seed, prior):
    z, means = embeddings(seed)
    rng = np.random.default_rng(seed)
    labels, counts = rng.integers(0, 4, len(z)), prior * rng.integers(0, 3, 4)
    found, found_counts = update(z, labels, means, counts)
    expected, expected_counts = one_by_one(z, labels, means, counts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(found_counts, expected_counts)


def test_running_means_weigh_the_old_mean_by_its_count():
    z, means = embeddings(0)
    labels = nearest(z, means)
    found, counts = update(z, labels, means, np.full(4, 100.0))
    for j in range(4):
        members = z[labels == j]
        expected = (100 * means[j] + members.sum(axis=0)) / (100 + len(members))
        np.testing.assert_allclose(found[j], expected, rtol=0, atol=1e-14)
        assert counts[j] == 100 + len(members)


def test_running_means_forget_a_mean_of_count_zero():
    z, means = embeddings(1)
    labels = nearest(z, means)
    found, counts = update(z, labels, means + 1e3, np.zeros(4))
    expected = [z[labels == j].mean(axis=0) for j in range(4)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=4))


@pytest.mark.parametrize("prior", [0.0, 100.0])
def test_running_means_without_samples_stay(prior):
    # With count 0 as well, where a division would give NaN.
    z, means = embeddings(2)
    found, counts = update(z, np.full(len(z), 1), means, np.full(4, prior))
    np.testing.assert_array_equal(found[[0, 2, 3]], means[[0, 2, 3]])
    np.testing.assert_array_equal(counts, prior + np.array([0, len(z), 0, 0]))


def test_running_means_do_not_depend_on_order_or_batches():
    z, means = embeddings(3)
    labels, counts = nearest(z, means), np.full(4, 10.0)
    whole, whole_counts = update(z, labels, means, counts)
    order = np.random.default_rng(0).permutation(len(z))
    shuffled, _ = update(z[order], labels[order], means, counts)
    np.testing.assert_allclose(shuffled, whole, rtol=0, atol=1e-14)
    parts = means, counts
    for start in range(0, len(z), 7):
        parts = update(z[start : start + 7], labels[start : start + 7], *parts)
    np.testing.assert_allclose(parts[0], whole, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(parts[1], whole_counts)


def test_running_means_leave_their_arguments_alone():
    z, means = embeddings(4)
    labels = torch.from_numpy(nearest(z, means))
    arguments = tensor(z), labels, tensor(means), tensor(np.ones(4))
    before = [argument.clone() for argument in arguments]
    running_means(*arguments)
    assert all(torch.equal(new, old) for new, old in zip(arguments, before, strict=True))


def follow_sklearn(model, means, counts, seed):
    """Both over 10 batches, each assigned to the means at its start."""
    z, _ = embeddings(seed, n=200)
    for start in range(0, 200, 20):
        batch = z[start : start + 20]
        means, counts = update(batch, nearest(batch, means), means, counts)
        model.partial_fit(batch)
        np.testing.assert_allclose(means, model.cluster_centers_, rtol=0, atol=1e-12)
    return means


def mini_batch_k_means(init):
    return MiniBatchKMeans(len(init), init=init, n_init=1, reassignment_ratio=0, random_state=0)


@pytest.mark.parametrize("seed", range(3))
def test_running_means_from_count_zero_are_sklearns_mini_batch_k_means(seed):
    _, init = embeddings(seed, n=200)
    means = follow_sklearn(mini_batch_k_means(init), init, np.zeros(4), seed)
    assert np.abs(means - init).max() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_running_means_from_count_100_are_sklearns_after_100_copies_of_each_mean(seed):
    _, init = embeddings(seed, n=200)
    model = mini_batch_k_means(init).partial_fit(np.repeat(init, 100, axis=0))
    means = follow_sklearn(model, init, np.full(4, 100.0), seed)
    assert np.abs(means - init).max() > 0.1
