"""The objectives of MI-ADM, DEPICT, DKM, DCN and IDEC against their formulas.

P are posteriors and Q targets, one row a sample; f are squared distances, G the soft minimum's
weights. Everything on the right-hand side of a comparison is NumPy, SciPy, scikit-learn or
autograd applied to the formula. Targets may be stored in float32, so that what depends on them
is compared to a few times EPS32; everything else is float64.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax, xlogy
from sklearn.cluster import MiniBatchKMeans

from skdeepcluster.dcn import HardKMeans
from skdeepcluster.deep_kmeans import DifferentiableKMeans, annealing_schedule
from skdeepcluster.depict import BalancedDivergence
from skdeepcluster.idec import SharpenedDivergence
from skdeepcluster.mi_adm import MutualInformation
from skdeepcluster.sr_kmeans import SoftKMeans

EPS32 = float(np.finfo(np.float32).eps)
K, WIDTH = 4, 3
seeds = st.integers(0, 2**32 - 1)
few = settings(deadline=None, max_examples=25)


# --- instances --------------------------------------------------------------------------------


def tensor(array):
    """A copy, so that a model that writes into its prototypes does not write into the test's."""
    return torch.from_numpy(np.array(array, order="C"))


def blobs(seed, n=40):
    """Overlapping blobs, and prototypes drawn from the samples, so that no cluster is empty."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(K, WIDTH))
    z = centres[rng.integers(0, K, n)] + rng.normal(size=(n, WIDTH))
    return z, z[rng.choice(n, K, replace=False)].copy()


def logistic(seed, n=40):
    """Embeddings, and the weights and biases of a logistic posterior of unequal clusters."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, WIDTH)), 2 * rng.normal(size=(K, WIDTH)), rng.normal(size=K)


def distances(z, prototypes):
    return ((z[:, None, :] - prototypes[None, :, :]) ** 2).sum(axis=2)


def nearest(z, prototypes):
    return distances(z, prototypes).argmin(axis=1)


def means_of(z, labels):
    return np.array([z[labels == j].mean(axis=0) for j in range(K)])


def batch_of(seed, n, size=11):
    """Indices of a batch, in no order."""
    return np.random.default_rng(seed + 1).choice(n, size, replace=False)


def loss_of(model, z, index=None):
    """Loss of a batch of these embeddings; without indices, of all samples."""
    index = np.arange(len(z)) if index is None else index
    return model.loss(tensor(z), tensor(index)).item()


def gradients(model, z, index=None):
    """Gradients of the loss with respect to the embeddings and to the parameters by name."""
    index = np.arange(len(z)) if index is None else index
    z = tensor(z).requires_grad_()
    model.zero_grad()
    model.loss(z, tensor(index)).backward()
    return z.grad.numpy(), {name: p.grad.numpy() for name, p in model.named_parameters()}


def posterior(model, z):
    return model.log_posterior(tensor(z)).detach().exp().numpy()


def mi_adm(coef, intercept, *, lam=0.1, solver="adm", target="closed-form"):
    return MutualInformation(tensor(coef), tensor(intercept), lam=lam, solver=solver, target=target)


def depict(coef, intercept, *, gamma=1.0, target="depict"):
    return BalancedDivergence(tensor(coef), tensor(intercept), gamma=gamma, target=target)


def dkm(prototypes, alphas, *, lam=0.7, n_features=7, **options):
    alphas = np.atleast_1d(np.asarray(alphas, dtype=float))
    return DifferentiableKMeans(
        tensor(prototypes), alphas, lam=lam, n_features=n_features, **options
    )


def dcn(z, labels, *, lam=0.7, **options):
    """A HardKMeans after start() with these labels."""
    prototypes = torch.zeros(K, z.shape[1], dtype=torch.float64)
    model = HardKMeans(prototypes, lam=lam, n_features=7, **options)
    model.start(tensor(z), tensor(labels))
    return model


def idec(prototypes, *, lam=0.3, reconstruct=True):
    return SharpenedDivergence(tensor(prototypes), lam=lam, reconstruct=reconstruct)


# --- the formulas -----------------------------------------------------------------------------


def normalised(weights):
    return weights / weights.sum(axis=1, keepdims=True)


def closed_form_target(p):
    return normalised(p**2 / np.sqrt((p**2).sum(axis=0)))


def exact_target(p):
    """The solution of q_ik proportional to p_ik^2 / share_k, by the damped fixed point."""
    share = p.mean(axis=0)
    for _ in range(200):
        share = np.sqrt(share * normalised(p**2 / share).mean(axis=0))
        share /= share.sum()
    return normalised(p**2 / share)


def dec_target(p):
    return normalised(p**2 / p.sum(axis=0))


def depict_target(p, gamma):
    return normalised(p / p.sum(axis=0) ** (gamma / (1 + gamma)))


MI_ADM_TARGETS = {"closed-form": closed_form_target, "exact": exact_target}
DEPICT_TARGETS = {"depict": depict_target, "dec": lambda p, gamma: dec_target(p)}


def logistic_log_p(z, coef, intercept):
    return log_softmax(z @ coef.T + intercept, axis=1)


def cross_entropy(q, log_p):
    return -(q * log_p).sum(axis=1).mean()


def entropy(p):
    return -xlogy(p, p).sum(axis=-1).mean()


def kl_divergence(q, log_p):
    return cross_entropy(q, log_p) - entropy(q)


def information(p):
    return entropy(p.mean(axis=0)) - entropy(p)


def student_t(z, prototypes):
    return normalised(1 / (1 + distances(z, prototypes)))


def soft_minimum(z, prototypes, alpha):
    """Per sample, sum_k f_k G_k with G = softmax(-alpha f)."""
    f = distances(z, prototypes)
    return (f * softmax(-alpha * f, axis=1)).sum(axis=1)


# --- what the training loop asks --------------------------------------------------------------


def test_mi_adm_and_depict_warm_up_and_only_dcn_is_online():
    # after_step costs a pass of every batch; a method that does not need it must not ask for it.
    assert MutualInformation.warm_up and BalancedDivergence.warm_up
    others = MutualInformation, BalancedDivergence, DifferentiableKMeans, SharpenedDivergence
    assert HardKMeans.online and not any(method.online for method in others)


def test_reconstruction_is_a_sum_over_features_where_the_paper_has_it_so():
    # What it weighs is a mean over features, so that their number makes the sum.
    _, prototypes = blobs(0)
    assert dkm(prototypes, 1.0, n_features=64).reconstruction_weight == 64
    hard = HardKMeans(tensor(prototypes), lam=1.0, n_features=64)
    assert hard.reconstruction_weight == 64
    assert mi_adm(prototypes, np.zeros(K)).reconstruction_weight == 1
    assert depict(prototypes, np.zeros(K)).reconstruction_weight == 1
    assert idec(prototypes, reconstruct=True).reconstruction_weight == 1
    # DEC trains without the decoder.
    assert idec(prototypes, reconstruct=False).reconstruction_weight == 0


MODELS = {
    "mi_adm": lambda z, prototypes: mi_adm(prototypes, np.zeros(K)),
    "depict": lambda z, prototypes: depict(prototypes, np.zeros(K)),
    "dkm": lambda z, prototypes: dkm(prototypes, [0.5, 5.0], max_epochs=2),
    "dcn": lambda z, prototypes: dcn(z, nearest(z, prototypes)),
    "idec": lambda z, prototypes: idec(prototypes),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def started(make, z, prototypes):
    model = make(z, prototypes)
    model.start(tensor(z), tensor(nearest(z, prototypes)))
    return model


@every_model
def test_energy_and_posterior_are_looks_without_consequences(make):
    z, prototypes = blobs(0)
    other, _ = blobs(1)
    model = started(make, z, prototypes)
    model.e_step(tensor(z), 0)
    before, state = loss_of(model, z), {k: v.clone() for k, v in model.state_dict().items()}
    assert isinstance(model.energy(tensor(other)), float)
    model.log_posterior(tensor(other))
    assert loss_of(model, z) == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@every_model
def test_loss_depends_on_pairs_of_embedding_and_index_and_not_on_their_order(make):
    z, prototypes = blobs(0)
    model = started(make, z, prototypes)
    model.e_step(tensor(z), 0)
    index = batch_of(0, len(z))
    first = loss_of(model, z[index], index)
    np.testing.assert_allclose(loss_of(model, z[index[::-1]], index[::-1]), first, rtol=1e-13)
    # The mean of single losses: an average over the batch, not a sum.
    singles = [loss_of(model, z[[i]], np.array([i])) for i in index]
    np.testing.assert_allclose(np.mean(singles), first, rtol=1e-12)


@every_model
def test_posteriors_are_distributions(make):
    z, prototypes = blobs(0)
    p = posterior(started(make, z, prototypes), z)
    assert p.shape == (len(z), K) and p.dtype == np.float64
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["dkm", "dcn", "idec"])
def test_start_puts_the_prototypes_at_the_means_of_the_initial_clusters(name):
    z, prototypes = blobs(0)
    labels = nearest(z, prototypes)
    model = started(MODELS[name], z, prototypes + 100)
    model.start(tensor(z), tensor(labels))
    found = model.prototypes.detach().numpy()
    np.testing.assert_allclose(found, means_of(z, labels), rtol=0, atol=1e-13)


@every_model
def test_reported_objective_is_the_energy_of_the_state_that_is_reported(make):
    z, prototypes = blobs(0)
    model = started(make, z, prototypes)
    moved = z + 0.3 * np.random.default_rng(0).normal(size=z.shape)
    model.e_step(tensor(z), 0)
    # The last epoch: DKM's alpha is the last value before and after.
    report = model.e_step(tensor(moved), 1)
    assert report["objective"] == pytest.approx(model.energy(tensor(moved)), rel=1e-12)
    assert report["objective"] != pytest.approx(model.energy(tensor(z)), rel=1e-3)


# --- MI-ADM: the alternating direction method -------------------------------------------------


mi_adm_targets = pytest.mark.parametrize("target", MI_ADM_TARGETS)


@mi_adm_targets
@given(seeds)
@few
def test_mi_adm_posterior_is_logistic(target, seed):
    z, coef, intercept = logistic(seed)
    found = mi_adm(coef, intercept, target=target).log_posterior(tensor(z)).detach().numpy()
    np.testing.assert_allclose(found, logistic_log_p(z, coef, intercept), rtol=0, atol=1e-12)


@mi_adm_targets
@given(seeds)
@few
def test_mi_adm_loss_is_the_cross_entropy_to_all_datas_targets_plus_the_penalty(target, seed):
    z, coef, intercept = logistic(seed)
    model = mi_adm(coef, intercept, lam=0.1, target=target)
    model.e_step(tensor(z), 0)
    log_p = logistic_log_p(z, coef, intercept)
    q = MI_ADM_TARGETS[target](np.exp(log_p))
    index = batch_of(seed, len(z))
    # The batch has moved since the targets were set, which is what the network's step does.
    moved = z[index] + 0.1
    expected = cross_entropy(q[index], logistic_log_p(moved, coef, intercept))
    expected += 0.05 * (coef**2).sum()
    np.testing.assert_allclose(loss_of(model, moved, index), expected, rtol=4 * EPS32)


@mi_adm_targets
@given(seeds)
@few
def test_mi_adm_gradients_are_those_of_a_logistic_regression_on_soft_labels(target, seed):
    # d loss / d logit = (p - q) / B; the penalty is on the weights alone.
    z, coef, intercept = logistic(seed)
    model = mi_adm(coef, intercept, lam=0.1, target=target)
    model.e_step(tensor(z), 0)
    p = np.exp(logistic_log_p(z, coef, intercept))
    index = batch_of(seed, len(z))
    residual = (p - MI_ADM_TARGETS[target](p))[index] / len(index)
    by_z, by_name = gradients(model, z[index], index)
    atol = 10 * EPS32 / len(index)
    np.testing.assert_allclose(by_z, residual @ coef, rtol=0, atol=4 * atol)
    np.testing.assert_allclose(by_name["intercept"], residual.sum(axis=0), rtol=0, atol=4 * atol)
    expected = residual.T @ z[index] + 0.1 * coef
    np.testing.assert_allclose(by_name["coef"], expected, rtol=0, atol=8 * atol)


@mi_adm_targets
@given(seeds)
@few
def test_mi_adm_energy_is_minus_half_the_bound_plus_the_penalty(target, seed):
    # A(P, Q) = mean q log p - sum share log share - KL(Q || P) = I(Q) - 2 KL(Q || P).
    z, coef, intercept = logistic(seed)
    log_p = logistic_log_p(z, coef, intercept)
    q = MI_ADM_TARGETS[target](np.exp(log_p))
    bound = -cross_entropy(q, log_p) + entropy(q.mean(axis=0)) - kl_divergence(q, log_p)
    expected = -bound / 2 + 0.05 * (coef**2).sum()
    model = mi_adm(coef, intercept, lam=0.1, target=target)
    np.testing.assert_allclose(model.energy(tensor(z)), expected, rtol=0, atol=1e-11)
    report = model.e_step(tensor(z), 0)
    np.testing.assert_allclose(report["objective"], expected, rtol=0, atol=1e-11)
    information_of_p = information(np.exp(log_p))
    np.testing.assert_allclose(report["mutual_information"], information_of_p, rtol=0, atol=1e-12)


@mi_adm_targets
@given(seeds)
@few
def test_mi_adm_loss_and_energy_differ_by_entropies_of_the_targets_only(target, seed):
    # Why training on the cross-entropy is training on the bound: the rest is constant.
    z, coef, intercept = logistic(seed)
    model = mi_adm(coef, intercept, lam=0.1, target=target)
    model.e_step(tensor(z), 0)
    q = MI_ADM_TARGETS[target](np.exp(logistic_log_p(z, coef, intercept)))
    expected = (entropy(q) + entropy(q.mean(axis=0))) / 2
    found = loss_of(model, z) - model.energy(tensor(z))
    np.testing.assert_allclose(found, expected, rtol=0, atol=40 * EPS32)


def slope_of_energy(target, seed, h=1e-5):
    """Slope of the energy in a random direction, and of the loss with the targets held."""
    z, coef, intercept = logistic(seed)
    rng = np.random.default_rng(seed)
    steps = [rng.normal(size=array.shape) for array in (z, coef, intercept)]

    def energy(t):
        moved = [a + t * step for a, step in zip((z, coef, intercept), steps, strict=True)]
        return mi_adm(*moved[1:], lam=0.1, target=target).energy(tensor(moved[0]))

    model = mi_adm(coef, intercept, lam=0.1, target=target)
    model.e_step(tensor(z), 0)
    by_z, by_name = gradients(model, z)
    parts = zip((by_z, by_name["coef"], by_name["intercept"]), steps, strict=True)
    loss_slope = sum((gradient * step).sum() for gradient, step in parts)
    return (energy(h) - energy(-h)) / (2 * h), loss_slope


@pytest.mark.parametrize("seed", range(5))
def test_mi_adm_with_exact_targets_descends_its_energy(seed):
    # Envelope theorem: at the exact minimiser over Q the energy's slope is the loss's.
    of_energy, of_loss = slope_of_energy("exact", seed)
    np.testing.assert_allclose(of_loss, of_energy, rtol=0, atol=1e-6)


def test_mi_adm_with_closed_form_targets_descends_its_energy_only_roughly():
    # The closed form is not the minimiser; this is what tells the two targets apart.
    of_energy, of_loss = slope_of_energy("closed-form", 0)
    assert abs(of_energy - of_loss) > 1e-4


def test_mi_adm_with_exact_targets_never_raises_its_energy():
    z, coef, intercept = logistic(3)
    model = mi_adm(coef, intercept, lam=0.1, target="exact")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for epoch in range(40):
        values.append(model.e_step(tensor(z), epoch)["objective"])
        for _ in range(5):
            optimiser.zero_grad()
            model.loss(tensor(z), torch.arange(len(z))).backward()
            optimiser.step()
    assert (np.diff(values) < 0).all()


@mi_adm_targets
def test_mi_adm_ignores_a_cluster_that_nothing_belongs_to(target):
    # Its probabilities underflow to zero: no NaN, and the others do not notice.
    z, coef, intercept = logistic(0)
    coef[-1], intercept[-1] = 0, -5000
    model, smaller = (
        mi_adm(coef, intercept, lam=0.1, target=target),
        mi_adm(coef[:-1], intercept[:-1], lam=0.1, target=target),
    )
    report, expected = model.e_step(tensor(z), 0), smaller.e_step(tensor(z), 0)
    assert report == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(loss_of(model, z), loss_of(smaller, z), rtol=EPS32)
    by_z, by_name = gradients(model, z)
    np.testing.assert_allclose(by_z, gradients(smaller, z)[0], rtol=0, atol=EPS32)
    assert by_name["intercept"][-1] == 0


# --- MI-D: the gradient of the information itself ---------------------------------------------


def torch_information_loss(z, coef, intercept, lam):
    """-I(P) + lam ||coef||^2 of all data, with every share differentiated."""
    log_p = torch.log_softmax(z @ coef.T + intercept, dim=1)
    share = log_p.exp().mean(dim=0)
    minus_information = torch.xlogy(share, share).sum() - (log_p.exp() * log_p).sum(dim=1).mean()
    # I = H(share) - H(P rows), so that -I = sum share log share - mean sum p log p.
    return minus_information + lam * coef.square().sum()


def single(*arrays):
    """Inputs that float32 holds exactly, as float64: no rounding is left to the comparison."""
    return [array.astype(np.float32).astype(np.float64) for array in arrays]


def mi_d(coef, intercept, *, lam=0.1, dtype=np.float32):
    return mi_adm(coef.astype(dtype), intercept.astype(dtype), lam=lam, solver="direct")


def mi_d_loss(model, z, index=None):
    return loss_of(model, z.astype(np.float32), index)


@given(seeds)
@few
def test_mi_d_loss_of_all_data_is_minus_the_information_plus_the_penalty(seed):
    z, coef, intercept = single(*logistic(seed))
    p = np.exp(logistic_log_p(z, coef, intercept))
    expected = -information(p) + 0.1 * (coef**2).sum()
    model = mi_d(coef, intercept)
    assert model.energy(tensor(z.astype(np.float32))) == pytest.approx(expected, rel=2 * EPS32)
    report = model.e_step(tensor(z.astype(np.float32)), 0)
    assert report["objective"] == pytest.approx(expected, rel=2 * EPS32)
    assert report["mutual_information"] == pytest.approx(information(p), rel=10 * EPS32)
    # The whole data as the batch leaves its running estimate of the shares where it is exact.
    for _ in range(3):
        assert mi_d_loss(model, z) == pytest.approx(expected, rel=4 * EPS32)


@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_mi_d_gradient_of_all_data_is_that_of_the_information(seed, lam):
    # The shares are constants in the loss; their own derivative cancels, as rows of P sum to one.
    arrays = single(*logistic(seed))
    z, coef, intercept = arrays
    model = mi_d(coef, intercept, lam=lam)
    model.e_step(tensor(z.astype(np.float32)), 0)
    by_z, by_name = gradients(model, z.astype(np.float32))
    leaves = [tensor(array).requires_grad_() for array in arrays]
    expected = torch.autograd.grad(torch_information_loss(*leaves, lam), leaves)
    scale = 20 * EPS32
    np.testing.assert_allclose(by_z, expected[0], rtol=0, atol=scale / len(z))
    np.testing.assert_allclose(by_name["coef"], expected[1], rtol=0, atol=scale)
    np.testing.assert_allclose(by_name["intercept"], expected[2], rtol=0, atol=scale)
    assert np.abs(expected[0].numpy()).max() > 1e-2 / len(z)


@pytest.mark.parametrize("seed", range(5))
def test_mi_d_energy_in_float64_is_minus_the_information_plus_the_penalty(seed):
    z, coef, intercept = logistic(seed)
    expected = -information(np.exp(logistic_log_p(z, coef, intercept))) + 0.1 * (coef**2).sum()
    model = mi_d(coef, intercept, dtype=np.float64)
    np.testing.assert_allclose(model.energy(tensor(z)), expected, rtol=1e-13)
    np.testing.assert_allclose(model.e_step(tensor(z), 0)["objective"], expected, rtol=1e-13)


def test_mi_d_takes_float64_embeddings_as_the_other_solver_does():
    z, coef, intercept = logistic(0)
    expected = -information(np.exp(logistic_log_p(z, coef, intercept))) + 0.1 * (coef**2).sum()
    model = mi_d(coef, intercept, dtype=np.float64)
    model.e_step(tensor(z), 0)
    np.testing.assert_allclose(loss_of(model, z), expected, rtol=4 * EPS32)


def test_mi_d_estimates_the_shares_by_a_running_mean_over_batches():
    z, coef, intercept = single(*logistic(0))
    # Sorted by the first cluster's probability, so that batches are unlike the whole.
    p = np.exp(logistic_log_p(z, coef, intercept))
    order = p[:, 0].argsort()
    z, p = z[order], p[order]
    model = mi_d(coef, intercept)
    model.e_step(tensor(z.astype(np.float32)), 0)
    share = p.mean(axis=0)
    for start in range(0, 40, 10):
        index = np.arange(start, start + 10)
        batch = p[index]
        # Moved before it is used, so that the batch's own clusters are never of size zero.
        share = 0.9 * share + 0.1 * batch.mean(axis=0)
        expected = -(xlogy(batch, batch) - batch * np.log(share)).sum(axis=1).mean()
        expected += 0.1 * (coef**2).sum()
        assert mi_d_loss(model, z[index], index) == pytest.approx(expected, rel=4 * EPS32)
    # Far from exact by now, and exact again after the next epoch.
    assert np.abs(share - p.mean(axis=0)).max() > 0.01
    model.e_step(tensor(z.astype(np.float32)), 1)
    expected = -information(p) + 0.1 * (coef**2).sum()
    assert mi_d_loss(model, z) == pytest.approx(expected, rel=4 * EPS32)


def test_mi_d_gradient_of_a_batch_holds_the_shares_constant():
    z, coef, intercept = single(*logistic(1))
    index = np.arange(10)
    model = mi_d(coef, intercept, lam=0.0)
    model.e_step(tensor(z.astype(np.float32)), 0)
    by_z, _ = gradients(model, z[index].astype(np.float32), index)
    p = np.exp(logistic_log_p(z, coef, intercept))
    share = 0.9 * p.mean(axis=0) + 0.1 * p[index].mean(axis=0)
    # With g = log(p / share), d(-I)/d logit_k = -p_k (g_k - sum_j p_j g_j) / B.
    gain = np.log(p[index] / share)
    by_logit = -p[index] * (gain - (p[index] * gain).sum(axis=1, keepdims=True)) / len(index)
    np.testing.assert_allclose(by_z, by_logit @ coef, rtol=0, atol=20 * EPS32 / len(index))


def test_mi_d_survives_probabilities_and_shares_of_zero():
    z, coef, intercept = single(*logistic(0))
    coef[-1], intercept[-1] = 0, -5000
    model = mi_d(coef, intercept)
    model.e_step(tensor(z.astype(np.float32)), 0)
    p = np.exp(logistic_log_p(z, coef, intercept))
    assert (p[:, -1] == 0).all()
    expected = -information(p) + 0.1 * (coef**2).sum()
    assert mi_d_loss(model, z) == pytest.approx(expected, rel=4 * EPS32)
    by_z, by_name = gradients(model, z.astype(np.float32))
    leaves = [tensor(array).requires_grad_() for array in (z, coef[:-1], intercept[:-1])]
    smaller = torch.autograd.grad(torch_information_loss(*leaves, 0.1), leaves)
    np.testing.assert_allclose(by_z, smaller[0], rtol=0, atol=20 * EPS32 / len(z))
    np.testing.assert_allclose(by_name["intercept"][:-1], smaller[2], rtol=0, atol=20 * EPS32)
    assert by_name["intercept"][-1] == 0


# --- DEPICT -----------------------------------------------------------------------------------


depict_targets = pytest.mark.parametrize("target", DEPICT_TARGETS)
gammas = st.sampled_from([0.25, 0.5, 1.0, 2.0])


@depict_targets
@given(seeds, gammas)
@few
def test_depict_loss_is_the_cross_entropy_to_all_datas_targets(target, seed, gamma):
    z, coef, intercept = logistic(seed)
    model = depict(coef, intercept, gamma=gamma, target=target)
    model.e_step(tensor(z), 0)
    q = DEPICT_TARGETS[target](np.exp(logistic_log_p(z, coef, intercept)), gamma)
    index = batch_of(seed, len(z))
    moved = z[index] + 0.1
    expected = cross_entropy(q[index], logistic_log_p(moved, coef, intercept))
    np.testing.assert_allclose(loss_of(model, moved, index), expected, rtol=4 * EPS32)


@depict_targets
@given(seeds, gammas)
@few
def test_depict_energy_is_the_divergence_plus_the_balance(target, seed, gamma):
    z, coef, intercept = logistic(seed)
    log_p = logistic_log_p(z, coef, intercept)
    q = DEPICT_TARGETS[target](np.exp(log_p), gamma)
    # The target of DEC has no gamma, nor has its objective.
    balance = 0.0 if target == "dec" else -gamma * entropy(q.mean(axis=0))
    expected = kl_divergence(q, log_p) + balance
    model = depict(coef, intercept, gamma=gamma, target=target)
    np.testing.assert_allclose(model.energy(tensor(z)), expected, rtol=0, atol=1e-12)
    report = model.e_step(tensor(z), 0)
    np.testing.assert_allclose(report["objective"], expected, rtol=0, atol=1e-12)
    information_of_p = information(np.exp(log_p))
    np.testing.assert_allclose(report["mutual_information"], information_of_p, rtol=0, atol=1e-12)


@depict_targets
@pytest.mark.parametrize("seed", range(5))
def test_depict_gradients_are_those_of_a_logistic_regression_on_soft_labels(target, seed):
    z, coef, intercept = logistic(seed)
    model = depict(coef, intercept, target=target)
    model.e_step(tensor(z), 0)
    p = np.exp(logistic_log_p(z, coef, intercept))
    residual = (p - DEPICT_TARGETS[target](p, 1.0)) / len(z)
    by_z, by_name = gradients(model, z)
    atol = 20 * EPS32 / len(z)
    np.testing.assert_allclose(by_z, residual @ coef, rtol=0, atol=atol)
    np.testing.assert_allclose(by_name["intercept"], residual.sum(axis=0), rtol=0, atol=atol)
    np.testing.assert_allclose(by_name["coef"], residual.T @ z, rtol=0, atol=atol)
    assert np.abs(residual).max() > 1e-2 / len(z)


def test_depict_of_balanced_posteriors_has_nothing_to_learn():
    # Equal shares are a fixed point, Q = P: no gradient, and the least energy, -gamma log K.
    rng = np.random.default_rng(0)
    rows = np.log(rng.dirichlet(np.ones(K), size=5))
    # Every shift of every row; the embedding is the logits, the weights the identity.
    z = np.concatenate([np.roll(rows, shift, axis=1) for shift in range(K)])
    model = depict(np.eye(K), np.zeros(K), gamma=2.0)
    report = model.e_step(tensor(z), 0)
    np.testing.assert_allclose(report["objective"], -2 * np.log(K), rtol=1e-14)
    by_z, _ = gradients(model, z)
    np.testing.assert_allclose(by_z, 0, rtol=0, atol=EPS32 / len(z))


# --- MI-ADM and DEPICT: start and warm-up -----------------------------------------------------


LOGISTIC = {
    "adm": lambda coef, intercept: mi_adm(coef, intercept, lam=0.0),
    "direct": lambda coef, intercept: mi_adm(coef, intercept, lam=0.0, solver="direct"),
    "depict": depict,
}
every_logistic = pytest.mark.parametrize("make", LOGISTIC.values(), ids=LOGISTIC.keys())


@every_logistic
@pytest.mark.parametrize("seed", range(3))
def test_start_gives_an_isotropic_posterior_about_the_means_of_the_clusters(make, seed):
    z, prototypes = blobs(seed)
    labels = nearest(z, prototypes)
    model = make(np.zeros((K, WIDTH)), np.zeros(K))
    model.start(tensor(z), tensor(labels))
    means = means_of(z, labels)
    temperature = 2 * ((z - means[labels]) ** 2).sum(axis=1).mean()
    expected = softmax(-distances(z, means) / temperature, axis=1)
    found = posterior(model, z)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found.argmax(axis=1), nearest(z, means))
    assert isinstance(model.coef, torch.nn.Parameter)
    assert isinstance(model.intercept, torch.nn.Parameter)


@every_logistic
def test_start_survives_embeddings_that_are_all_equal(make):
    # Their mean squared distance is zero, which is no temperature.
    z = np.ones((8, WIDTH))
    model = make(np.zeros((K, WIDTH)), np.zeros(K))
    model.start(tensor(z), tensor(np.arange(8) % K))
    np.testing.assert_allclose(posterior(model, z), 1 / K, rtol=1e-14)
    assert torch.isfinite(model.coef).all()


@every_logistic
def test_start_makes_the_initial_labels_the_targets(make):
    z, _ = blobs(0)
    # Labels that the posterior itself would not give.
    labels = np.random.default_rng(0).permutation(np.arange(len(z)) % K)
    model = make(np.zeros((K, WIDTH)), np.zeros(K))
    model.start(tensor(z), tensor(labels))
    log_p = model.log_posterior(tensor(z)).detach().numpy()
    index = batch_of(0, len(z))
    expected = -log_p[index, labels[index]].mean()
    np.testing.assert_allclose(loss_of(model, z[index], index), expected, rtol=1e-13)


def warming_up(model, z, labels):
    """Start a model, and put its parameters back: as some epochs of training may change them."""
    later = {name: value.clone() for name, value in model.state_dict().items()}
    model.start(tensor(z), tensor(labels))
    model.load_state_dict(later)
    return model


@every_logistic
def test_warm_up_keeps_to_the_labels(make):
    z, coef, intercept = logistic(0)
    labels = np.arange(len(z)) % K
    model = warming_up(make(coef, intercept), z, labels)
    hard = -logistic_log_p(z, coef, intercept)[np.arange(len(z)), labels].mean()
    for epoch in range(2):
        model.e_step(tensor(z), epoch, tensor(labels))
        np.testing.assert_allclose(loss_of(model, z), hard, rtol=1e-13)
        residual = np.exp(logistic_log_p(z, coef, intercept)) - np.eye(K)[labels]
        by_z, _ = gradients(model, z)
        np.testing.assert_allclose(by_z, residual @ coef / len(z), rtol=0, atol=1e-14)
    # Trainable parts are trained, not set.
    np.testing.assert_array_equal(model.coef.detach().numpy(), coef)
    np.testing.assert_array_equal(model.intercept.detach().numpy(), intercept)


@pytest.mark.parametrize("name", ["adm", "depict"])
def test_warm_up_ends_with_the_first_e_step_without_labels(name):
    z, coef, intercept = logistic(0)
    labels = np.arange(len(z)) % K
    model = warming_up(LOGISTIC[name](coef, intercept), z, labels)
    model.e_step(tensor(z), 0, tensor(labels))
    hard = loss_of(model, z)
    model.e_step(tensor(z), 1)
    log_p = logistic_log_p(z, coef, intercept)
    p = np.exp(log_p)
    q = closed_form_target(p) if name == "adm" else depict_target(p, 1.0)
    np.testing.assert_allclose(loss_of(model, z), cross_entropy(q, log_p), rtol=4 * EPS32)
    assert abs(loss_of(model, z) - hard) > 0.01


def test_both_solvers_of_mi_adm_warm_up_alike():
    z, coef, intercept = logistic(0)
    labels = np.arange(len(z)) % K
    expected = -logistic_log_p(z, coef, intercept)[np.arange(len(z)), labels].mean()
    expected += 0.05 * (coef**2).sum()
    for solver in ("adm", "direct"):
        model = warming_up(mi_adm(coef, intercept, lam=0.1, solver=solver), z, labels)
        model.e_step(tensor(z), 0, tensor(labels))
        np.testing.assert_allclose(loss_of(model, z), expected, rtol=1e-13)


def test_warm_up_of_the_direct_solver_ends_with_the_first_e_step_without_labels():
    z, coef, intercept = single(*logistic(0))
    labels = np.arange(len(z)) % K
    model = warming_up(mi_d(coef, intercept, lam=0.0), z.astype(np.float32), labels)
    model.e_step(tensor(z.astype(np.float32)), 0, tensor(labels))
    assert mi_d_loss(model, z) > 0
    model.e_step(tensor(z.astype(np.float32)), 1)
    expected = -information(np.exp(logistic_log_p(z, coef, intercept)))
    assert mi_d_loss(model, z) == pytest.approx(expected, rel=20 * EPS32)


# --- DKM: the soft minimum --------------------------------------------------------------------


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
@few
def test_dkm_loss_is_the_soft_minimum_of_the_squared_distances(seed, alpha):
    z, prototypes = blobs(seed)
    model = dkm(prototypes, alpha, lam=0.7)
    expected = 0.7 * soft_minimum(z, prototypes, alpha)
    index = batch_of(seed, len(z))
    np.testing.assert_allclose(loss_of(model, z[index], index), expected[index].mean(), rtol=1e-12)
    np.testing.assert_allclose(model.energy(tensor(z)), expected.mean(), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_dkm_with_tiny_alpha_is_the_mean_over_clusters(seed):
    z, prototypes = blobs(seed)
    expected = 0.7 * distances(z, prototypes).mean()
    np.testing.assert_allclose(loss_of(dkm(prototypes, 1e-13), z), expected, rtol=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_dkm_with_huge_alpha_is_the_minimum_over_clusters(seed):
    z, prototypes = blobs(seed)
    model = dkm(prototypes, 1e8)
    expected = 0.7 * distances(z, prototypes).min(axis=1).mean()
    np.testing.assert_allclose(loss_of(model, z), expected, rtol=1e-14)
    # And its gradient is that of k-means.
    by_z, by_name = gradients(model, z)
    labels = nearest(z, prototypes)
    pull = 2 * 0.7 / len(z) * (z - prototypes[labels])
    np.testing.assert_allclose(by_z, pull, rtol=0, atol=1e-14)
    expected = np.array([-pull[labels == j].sum(axis=0) for j in range(K)])
    np.testing.assert_allclose(by_name["prototypes"], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_dkm_loss_falls_with_alpha_by_the_variance_of_the_distances(seed, alpha):
    z, prototypes = blobs(seed)
    h = 1e-5 * alpha
    rise = loss_of(dkm(prototypes, alpha + h), z) - loss_of(dkm(prototypes, alpha - h), z)
    f = distances(z, prototypes)
    g = softmax(-alpha * f, axis=1)
    variance = (g * f**2).sum(axis=1) - (g * f).sum(axis=1) ** 2
    np.testing.assert_allclose(rise / (2 * h), -0.7 * variance.mean(), rtol=1e-7)


@given(seeds, st.floats(-3, 6))
@few
def test_dkm_loss_is_above_the_minimum_by_at_most_log_k_over_alpha(seed, power):
    # L = -log sum exp(-alpha f) / alpha + H(G) / alpha, and 0 <= H(G) <= log K.
    z, prototypes = blobs(seed)
    alpha = 10.0**power
    f = distances(z, prototypes)
    found = loss_of(dkm(prototypes, alpha, lam=1.0), z)
    gap, rounding = found - f.min(axis=1).mean(), 1e-13 * f.mean()
    assert -rounding <= gap <= np.log(K) / alpha + rounding
    identity = (entropy(softmax(-alpha * f, axis=1)) - logsumexp(-alpha * f, axis=1).mean()) / alpha
    np.testing.assert_allclose(found, identity, rtol=0, atol=1e-13 * (f.mean() + 1 / alpha))


def test_dkm_bound_needs_its_log_k():
    # One prototype at the sample, all others at distance 1: alpha L = t (K - 1) / (e^t + K - 1).
    k, alpha = 10**5, 9.2
    prototypes = np.ones((k, 1))
    prototypes[0] = 0
    found = loss_of(dkm(prototypes, alpha, lam=1.0), np.zeros((1, 1)))
    np.testing.assert_allclose(found, (k - 1) / (np.exp(alpha) + k - 1), rtol=1e-12)
    assert 0.7 * np.log(k) / alpha < found < np.log(k) / alpha


@pytest.mark.parametrize("alpha", [0.5, 1e8])
def test_dkm_weights_do_not_depend_on_what_all_distances_share(alpha):
    # A further axis along which all prototypes are equal adds one number to all distances.
    z, prototypes = blobs(0)
    shift = 1000.0
    far = np.column_stack([z, np.full(len(z), shift)])
    flat = np.column_stack([prototypes, np.zeros(K)])
    near_model, far_model = dkm(prototypes, alpha), dkm(flat, alpha)
    rise = loss_of(far_model, far) - loss_of(near_model, z)
    np.testing.assert_allclose(rise, 0.7 * shift**2, rtol=1e-13)
    # Distances of 1e6 have lost ten digits of their differences, no more.
    by_z, by_name = gradients(near_model, z)
    far_by_z, far_by_name = gradients(far_model, far)
    np.testing.assert_allclose(far_by_z[:, :-1], by_z, rtol=0, atol=1e-8 / len(z))
    found, expected = far_by_name["prototypes"][:, :-1], by_name["prototypes"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_dkm_at_huge_alpha_has_no_nan(scale, dtype):
    z, prototypes = (array.astype(dtype) for array in blobs(0))
    z, prototypes = scale * z, scale * prototypes
    # A tie, a sample at its prototype, and two prototypes at the same place.
    z[0], prototypes[1] = (prototypes[2] + prototypes[3]) / 2, prototypes[0]
    model = dkm(prototypes, 1e8)
    assert z.dtype == prototypes.dtype == dtype
    by_z, by_name = gradients(model, z)
    assert np.isfinite(by_z).all() and np.isfinite(by_name["prototypes"]).all()
    expected = 0.7 * distances(z.astype(float), prototypes.astype(float)).min(axis=1).mean()
    # Near a tie at scale 1e-3, 1e8 is not infinite: by log K / alpha.
    slack = 0.7 * np.log(K) / 1e8
    found = loss_of(model, z)
    np.testing.assert_allclose(found, expected, rtol=10 * np.finfo(dtype).eps, atol=slack)
    assert np.isfinite(model.energy(tensor(z)))


def test_dkm_shares_a_tie_equally():
    prototypes = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [0.0, -5.0]])
    z = np.zeros((1, 2))
    model = dkm(prototypes, 1e8, lam=1.0)
    assert loss_of(model, z) == 1
    np.testing.assert_array_equal(posterior(model, z), [[0.5, 0.5, 0, 0]])
    by_z, by_name = gradients(model, z)
    np.testing.assert_array_equal(by_z, [[0, 0]])
    np.testing.assert_array_equal(by_name["prototypes"], [[-1, 0], [1, 0], [0, 0], [0, 0]])


# --- DKM: gradients through the weights -------------------------------------------------------


def pull_weights(z, prototypes, alpha):
    """w_ik = G_ik (1 - alpha (f_ik - sum_j G_ij f_ij))."""
    f = distances(z, prototypes)
    g = softmax(-alpha * f, axis=1)
    return g * (1 - alpha * (f - (g * f).sum(axis=1, keepdims=True)))


@given(seeds, st.sampled_from([0.01, 0.1, 1.0, 10.0]))
@few
def test_dkm_gradients_are_pulls_with_weights_that_differ_from_g(seed, alpha):
    z, prototypes = blobs(seed)
    index = batch_of(seed, len(z))
    z = z[index]
    by_z, by_name = gradients(dkm(prototypes, alpha), z, index)
    w = pull_weights(z, prototypes, alpha) * 2 * 0.7 / len(z)
    differences = z[:, None, :] - prototypes
    expected = (w[:, :, None] * differences).sum(axis=1)
    # Distances up to 100 times alpha 10 round to about 1e-13 in the exponent, and in its factor.
    np.testing.assert_allclose(by_z, expected, rtol=0, atol=1e-10)
    expected = -(w[:, :, None] * differences).sum(axis=0)
    np.testing.assert_allclose(by_name["prototypes"], expected, rtol=0, atol=1e-10)


def test_dkm_repels_a_prototype_beyond_the_mean_distance_plus_one_over_alpha():
    z = np.zeros((1, 1))
    prototypes = np.array([[0.5], [1.5], [-0.5], [0.1]])
    w = pull_weights(z, prototypes, 1.0)[0]
    f = prototypes[:, 0] ** 2
    g = softmax(-f)
    np.testing.assert_array_equal(w < 0, f > (g * f).sum() + 1)
    assert w[1] < 0 < w[0]
    by_r = gradients(dkm(prototypes, 1.0, lam=1.0), z)[1]["prototypes"][:, 0]
    np.testing.assert_allclose(by_r, 2 * w * prototypes[:, 0], rtol=1e-13)
    # Descent: the second prototype leaves the sample, the first comes closer.
    assert by_r[1] < 0 < by_r[0]


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dkm_gradient_is_not_that_of_sr_k_means(alpha):
    # With the weights held constant it would be G: the entropy is what DKM's loss lacks.
    z, prototypes = blobs(0)
    found = gradients(dkm(prototypes, alpha, lam=1.0), z)[1]["prototypes"]
    g = softmax(-alpha * distances(z, prototypes), axis=1)
    held = -2 / len(z) * (g[:, :, None] * (z[:, None, :] - prototypes)).sum(axis=0)
    assert np.abs(found - held).max() > 1e-2


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
@few
def test_dkm_posterior_is_that_of_sr_k_means_at_one_over_the_temperature(seed, temperature):
    # alpha = 1 / (lam k) with SR-K-means' lam; DKM's own lam plays no part.
    z, prototypes = blobs(seed)
    model = dkm(prototypes, 1 / temperature, lam=5.0)
    found = model.log_posterior(tensor(z)).detach().numpy()
    same = SoftKMeans(temperature, tensor(prototypes)).log_posterior(tensor(z)).numpy()
    np.testing.assert_allclose(found, same, rtol=1e-12, atol=1e-12)
    formula = log_softmax(-distances(z, prototypes) / temperature, axis=1)
    np.testing.assert_allclose(found, formula, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.argmax(axis=1), nearest(z, prototypes))


@given(seeds)
@few
def test_dkm_e_step_leaves_prototypes_that_have_samples(seed):
    # They are parameters: moved by the gradient alone.
    z, prototypes = blobs(seed)
    model = dkm(prototypes, [0.1, 1.0], max_epochs=2)
    assert model.e_step(tensor(z), 0)["n_reseeded"] == 0
    np.testing.assert_array_equal(model.prototypes.detach().numpy(), prototypes)
    assert isinstance(model.prototypes, torch.nn.Parameter)


@pytest.mark.parametrize("alpha", [0.1, 1e8])
def test_dkm_e_step_moves_a_prototype_without_samples_to_the_worst_represented_one(alpha):
    z, prototypes = blobs(0)
    far = prototypes.copy()
    # Its samples go over to the other clusters.
    far[2] = 100
    model = dkm(far, alpha, max_epochs=2)
    parameter = model.prototypes
    report = model.e_step(tensor(z), 0)
    assert report["n_reseeded"] == 1
    # No cluster here has one sample only, so that the farthest of all samples it is.
    far[2] = z[distances(z, far).min(axis=1).argmax()]
    np.testing.assert_array_equal(model.prototypes.detach().numpy(), far)
    assert np.bincount(nearest(z, far), minlength=K).min() > 0
    # The optimiser goes on with the same parameter, and the report is of what it has now.
    assert model.prototypes is parameter
    expected = 0.7 * soft_minimum(z, far, alpha).mean()
    np.testing.assert_allclose(report["objective"], expected, rtol=1e-12)
    g = softmax(-alpha * distances(z, far), axis=1)
    np.testing.assert_allclose(report["mutual_information"], information(g), rtol=1e-12)
    assert model.e_step(tensor(z), 1)["n_reseeded"] == 0


# --- DKM: the schedule ------------------------------------------------------------------------


PUBLISHED_ALPHAS = """
    0.1, 0.4232, 0.7516, 1.0780, 1.4087, 1.7482, 2.0994, 2.4644, 2.8448, 3.2422, 3.6576, 4.0921,
    4.5467, 5.0225, 5.5204, 6.0413, 6.5861, 7.1559, 7.7515, 8.3739, 9.0242, 9.7032, 10.4120,
    11.1516, 11.9231, 12.7277, 13.5663, 14.4402, 15.3505, 16.2984, 17.2851, 18.3119, 19.3802,
    20.4911, 21.6461, 22.8466, 24.0940, 25.3898, 26.7355, 28.1326
"""


def test_schedule_has_the_published_values():
    published = np.array(PUBLISHED_ALPHAS.split(","), dtype=float)
    found = annealing_schedule()
    assert found.shape == (40,)
    # Four decimals are printed.
    np.testing.assert_allclose(found, published, rtol=0, atol=5.001e-5)
    np.testing.assert_allclose(found[-1], 28.132578, rtol=0, atol=5e-7)


def test_schedule_follows_its_recurrence():
    found = annealing_schedule()
    assert found[0] == 0.1
    n = np.arange(2, 41)
    np.testing.assert_allclose(found[1:] / found[:-1], 2 ** (1 / np.log(n) ** 2), rtol=1e-13)
    assert (np.diff(found) > 0).all()
    assert (np.diff(found[1:] / found[:-1]) < 0).all()


@pytest.mark.parametrize("n_values", [1, 2, 10])
def test_shorter_schedules_are_beginnings_of_the_long_one(n_values):
    np.testing.assert_array_equal(annealing_schedule(n_values), annealing_schedule()[:n_values])


def alphas_of_a_run(max_epochs, alphas):
    """Alpha of each epoch, and whether training may end after it."""
    z, prototypes = blobs(0, n=10)
    model = dkm(prototypes, alphas, max_epochs=max_epochs)
    model.start(tensor(z), tensor(nearest(z, prototypes)))
    used, settled = [], []
    for epoch in range(max_epochs):
        used.append(model.alpha)
        model.e_step(tensor(z), epoch)
        settled.append(model.is_settled(epoch))
    return np.array(used), np.array(settled)


def test_every_value_lasts_five_of_200_epochs():
    alphas = annealing_schedule()
    used, settled = alphas_of_a_run(200, alphas)
    np.testing.assert_array_equal(used, np.repeat(alphas, 5))
    np.testing.assert_array_equal(settled, np.arange(200) >= 195)


def test_few_epochs_skip_values_and_end_on_the_last():
    alphas = annealing_schedule()
    used, settled = alphas_of_a_run(4, alphas)
    np.testing.assert_array_equal(used, alphas[[9, 19, 29, 39]])
    np.testing.assert_array_equal(settled, [False, False, False, True])


@pytest.mark.parametrize("max_epochs", [1, 3, 7, 39, 40, 41, 60])
def test_any_number_of_epochs_spreads_the_values_evenly_and_ends_on_the_last(max_epochs):
    alphas = annealing_schedule()
    used, settled = alphas_of_a_run(max_epochs, alphas)
    place = np.searchsorted(alphas, used)
    np.testing.assert_array_equal(alphas[place], used)
    # The epochs' ends at equal distances: the value that is under way at each of them.
    ends = np.arange(1, max_epochs + 1) * 40 / max_epochs
    np.testing.assert_array_equal(place, np.ceil(ends - 1e-9) - 1)
    np.testing.assert_array_equal(settled, place == 39)


def test_a_constant_alpha_is_always_settled():
    used, settled = alphas_of_a_run(3, 1000.0)
    np.testing.assert_array_equal(used, [1000.0] * 3)
    assert settled.all()


def test_the_last_value_stays_after_the_last_epoch():
    # The e_step of the last epoch has no next epoch to move on to.
    z, prototypes = blobs(0)
    model = dkm(prototypes, [0.1, 1.0], max_epochs=2)
    for epoch in range(2):
        model.e_step(tensor(z), epoch)
    assert model.alpha == 1
    np.testing.assert_allclose(
        model.energy(tensor(z)), 0.7 * soft_minimum(z, prototypes, 1.0).mean(), rtol=1e-12
    )


def test_loss_and_energy_and_report_follow_alpha():
    z, prototypes = blobs(0)
    model = dkm(prototypes, [0.1, 5.0], max_epochs=2)
    at = {alpha: 0.7 * soft_minimum(z, prototypes, alpha).mean() for alpha in (0.1, 5.0)}
    np.testing.assert_allclose(loss_of(model, z), at[0.1], rtol=1e-12)
    np.testing.assert_allclose(model.energy(tensor(z)), at[0.1], rtol=1e-12)
    report = model.e_step(tensor(z), 0)
    np.testing.assert_allclose(report["objective"], at[report["alpha"]], rtol=1e-12)
    g = softmax(-report["alpha"] * distances(z, prototypes), axis=1)
    np.testing.assert_allclose(report["mutual_information"], information(g), rtol=1e-12)
    np.testing.assert_allclose(loss_of(model, z), at[5.0], rtol=1e-12)
    np.testing.assert_allclose(model.energy(tensor(z)), at[5.0], rtol=1e-12)


# --- DCN: the loss ----------------------------------------------------------------------------


@given(seeds)
@few
def test_dcn_loss_is_half_the_squared_distance_to_the_stored_prototype(seed):
    z, _ = blobs(seed)
    # Labels that are not the nearest prototypes', so that stored and fresh ones differ.
    labels = np.random.default_rng(seed).permutation(np.arange(len(z)) % K)
    means = means_of(z, labels)
    model = dcn(z, labels)
    index = batch_of(seed, len(z))
    moved = z[index] + 0.5
    own = means[labels[index]]
    expected = 0.35 * ((moved - own) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(loss_of(model, moved, index), expected, rtol=1e-13)
    by_z, by_name = gradients(model, moved, index)
    np.testing.assert_allclose(by_z, 0.7 * (moved - own) / len(index), rtol=0, atol=1e-14)
    # No optimiser may move the prototypes.
    assert by_name == {}
    assert not model.prototypes.requires_grad
    assert model.prototypes.dtype == torch.float64


@given(seeds)
@few
def test_dcn_energy_is_half_the_squared_distance_to_the_nearest_prototype(seed):
    z, prototypes = blobs(seed)
    model = dcn(z, nearest(z, prototypes))
    other, _ = blobs(seed // 2 + 1)
    f = distances(other, model.prototypes.numpy())
    np.testing.assert_allclose(model.energy(tensor(other)), 0.35 * f.min(axis=1).mean(), rtol=1e-13)
    found = model.log_posterior(tensor(other)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(found, f.argmin(axis=1))
    np.testing.assert_array_equal(posterior(model, other), np.eye(K)[f.argmin(axis=1)])


def test_dcn_without_weight_trains_an_autoencoder():
    z, prototypes = blobs(0)
    model = dcn(z, nearest(z, prototypes), lam=0.0)
    assert loss_of(model, z + 1) == 0
    by_z, _ = gradients(model, z + 1)
    np.testing.assert_array_equal(by_z, np.zeros_like(z))
    # The prototypes still follow the samples.
    model.after_step(tensor(z + 1), torch.arange(len(z)))
    assert np.abs(model.prototypes.numpy() - means_of(z, nearest(z, prototypes))).max() > 0.1


def test_dcn_uses_stale_assignments_until_after_step_touches_the_sample():
    z, _ = blobs(0)
    labels = np.random.default_rng(0).permutation(np.arange(len(z)) % K)
    model = dcn(z, labels)
    old = model.prototypes.numpy().copy()
    index = batch_of(0, len(z))
    fresh = nearest(z[index], old)
    model.after_step(tensor(z[index]), tensor(index))
    expected = labels.copy()
    expected[index] = fresh
    assert (fresh != labels[index]).any() and (expected != nearest(z, old)).any()
    own = model.prototypes.numpy()[expected]
    per_sample = 0.35 * ((z - own) ** 2).sum(axis=1)
    found = [loss_of(model, z[[i]], np.array([i])) for i in range(len(z))]
    np.testing.assert_allclose(found, per_sample, rtol=1e-13)


def test_dcn_stores_the_prototypes_nearest_before_they_moved():
    z = np.array([[0.0], [10.0], [20.0], [30.0]])
    model = dcn(z, np.arange(K))
    # A count of zero: the prototype at 10 forgets 10 and moves to the mean of its two samples.
    model.after_step(tensor(np.array([[5.1], [14.0]])), tensor(np.array([0, 1])))
    second = (5.1 + 14.0) / 2
    np.testing.assert_allclose(model.prototypes.numpy()[:, 0], [0, second, 20, 30], rtol=1e-15)
    model.after_step(tensor(np.array([[4.8], [14.7]])), tensor(np.array([2, 3])))
    second = (5.1 + 14.0 + 4.8 + 14.7) / 4
    np.testing.assert_allclose(model.prototypes.numpy()[:, 0], [0, second, 20, 30], rtol=1e-15)
    # 4.8 was nearer to 9.55 than to 0 (4.75 against 4.8), and no longer is to 9.65: it stays.
    assert abs(4.8 - second) > 4.8
    found = loss_of(model, np.array([[4.8]]), np.array([2]))
    np.testing.assert_allclose(found, 0.35 * (4.8 - second) ** 2, rtol=1e-13)


# --- DCN: running means -----------------------------------------------------------------------


def batches(seed, n=240, size=20):
    order = np.random.default_rng(seed).permutation(n)
    return order.reshape(-1, size)


@pytest.mark.parametrize("init_count", [0, 100])
@pytest.mark.parametrize("seed", range(3))
def test_dcn_with_a_frozen_encoder_is_sklearns_mini_batch_k_means(seed, init_count):
    z, prototypes = blobs(seed, n=240)
    labels = nearest(z, prototypes)
    init = means_of(z, labels)
    model = dcn(z, labels, init_count=float(init_count))
    other = MiniBatchKMeans(K, init=init, n_init=1, reassignment_ratio=0, random_state=0)
    if init_count:
        # The prior weight of a mean is that of so many samples at it.
        other.partial_fit(np.repeat(init, init_count, axis=0))
    for index in batches(seed):
        model.after_step(tensor(z[index]), tensor(index))
        other.partial_fit(z[index])
        found = model.prototypes.numpy()
        np.testing.assert_allclose(found, other.cluster_centers_, rtol=0, atol=1e-13)
    assert np.abs(found - init).max() > 1e-2
    np.testing.assert_array_equal(model.counts.numpy().sum(), K * init_count + len(z))


@pytest.mark.parametrize("init_count", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_dcn_moves_its_prototypes_as_if_one_sample_after_the_other(seed, init_count):
    z, prototypes = blobs(seed, n=240)
    labels = nearest(z, prototypes)
    model = dcn(z, labels, init_count=init_count)
    means, counts = means_of(z, labels), np.full(K, init_count)
    np.testing.assert_array_equal(model.counts.numpy(), counts)
    for epoch, index in enumerate(batches(seed)):
        # A network that still moves: every batch is encoded anew.
        batch = z[index] + 0.1 * epoch
        model.after_step(tensor(batch), tensor(index))
        for sample, label in zip(batch, nearest(batch, means), strict=True):
            counts[label] += 1
            means[label] += (sample - means[label]) / counts[label]
        np.testing.assert_allclose(model.prototypes.numpy(), means, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(model.counts.numpy(), counts)


@pytest.mark.parametrize("init_count", [0.0, 100.0])
def test_dcn_leaves_a_prototype_without_samples_in_the_batch(init_count):
    z, prototypes = blobs(0)
    labels = nearest(z, prototypes)
    model = dcn(z, labels, init_count=init_count)
    old = model.prototypes.numpy().copy()
    index = np.flatnonzero((nearest(z, old) == 2) | (nearest(z, old) == 3))
    model.after_step(tensor(z[index]), tensor(index))
    found, counts = model.prototypes.numpy(), model.counts.numpy()
    np.testing.assert_array_equal(found[:2], old[:2])
    np.testing.assert_array_equal(counts[:2], init_count)
    assert (np.abs(found[2:] - old[2:]).max(axis=1) > 1e-4).all()
    np.testing.assert_array_equal(counts.sum(), K * init_count + len(index))


# --- IDEC -------------------------------------------------------------------------------------


@given(seeds)
@few
def test_idec_posterior_is_students_t(seed):
    z, prototypes = blobs(seed)
    found = posterior(idec(prototypes), z)
    np.testing.assert_allclose(found, student_t(z, prototypes), rtol=1e-12)
    np.testing.assert_array_equal(found.argmax(axis=1), nearest(z, prototypes))


@pytest.mark.parametrize("reconstruct", [True, False])
@given(seeds)
@few
def test_idec_loss_is_the_divergence_from_all_datas_targets(reconstruct, seed):
    z, prototypes = blobs(seed)
    model = idec(prototypes, lam=0.3, reconstruct=reconstruct)
    model.e_step(tensor(z), 0)
    q = dec_target(student_t(z, prototypes))
    index = batch_of(seed, len(z))
    # The batch has moved since.
    moved = z[index] + 0.5
    expected = 0.3 * kl_divergence(q[index], np.log(student_t(moved, prototypes)))
    # A difference of sums near one: absolute, not relative, precision.
    np.testing.assert_allclose(loss_of(model, moved, index), expected, rtol=0, atol=4 * EPS32)


@given(seeds)
@few
def test_idec_energy_is_the_divergence_of_its_own_target(seed):
    z, prototypes = blobs(seed)
    p = student_t(z, prototypes)
    expected = 0.3 * kl_divergence(dec_target(p), np.log(p))
    model = idec(prototypes, lam=0.3)
    np.testing.assert_allclose(model.energy(tensor(z)), expected, rtol=0, atol=1e-13)
    report = model.e_step(tensor(z), 0)
    np.testing.assert_allclose(report["objective"], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(report["mutual_information"], information(p), rtol=0, atol=1e-12)


def test_idec_targets_are_not_the_batchs_own():
    z, prototypes = blobs(0)
    model = idec(prototypes, lam=1.0)
    model.e_step(tensor(z), 0)
    p = student_t(z, prototypes)
    # One cluster alone: the batch's own shares are very unlike those of all data.
    index = np.flatnonzero(nearest(z, prototypes) == 1)
    found = loss_of(model, z[index], index)
    of_all = kl_divergence(dec_target(p)[index], np.log(p[index]))
    of_batch = kl_divergence(dec_target(p[index]), np.log(p[index]))
    np.testing.assert_allclose(found, of_all, rtol=0, atol=4 * EPS32)
    assert abs(of_all - of_batch) > 1e-2


@given(seeds)
@few
def test_idec_gradients_are_those_of_dec(seed):
    # dL/dz_i = 2 lam / B sum_j (1 + d_ij)^-1 (q_ij - p_ij) (z_i - mu_j), dL/dmu_j its negative.
    z, prototypes = blobs(seed)
    model = idec(prototypes, lam=0.3)
    model.e_step(tensor(z), 0)
    p = student_t(z, prototypes)
    index = batch_of(seed, len(z))
    by_z, by_name = gradients(model, z[index], index)
    weights = ((dec_target(p) - p) / (1 + distances(z, prototypes)))[index]
    pulls = 0.6 / len(index) * weights[:, :, None] * (z[index][:, None, :] - prototypes)
    atol = EPS32 / len(index)
    np.testing.assert_allclose(by_z, pulls.sum(axis=1), rtol=0, atol=atol)
    expected = -pulls.sum(axis=0)
    np.testing.assert_allclose(by_name["prototypes"], expected, rtol=0, atol=4 * atol)
    assert np.abs(by_z).max() > 1e-3 / len(index)


def test_idec_loss_of_its_own_posteriors_has_no_gradient():
    # Posteriors of equal shares and equal rows are their own targets.
    prototypes = np.concatenate([np.eye(2), -np.eye(2)])
    z = np.zeros((6, 2))
    model = idec(prototypes)
    report = model.e_step(tensor(z), 0)
    assert report["objective"] == pytest.approx(0, abs=1e-15)
    by_z, by_name = gradients(model, z)
    np.testing.assert_allclose(by_z, 0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(by_name["prototypes"], 0, rtol=0, atol=1e-15)


def test_idec_has_no_nan_at_a_prototype_or_very_far_from_all():
    z, prototypes = blobs(0)
    z[0], z[1] = prototypes[0], 1e6
    model = idec(prototypes, lam=1.0)
    model.e_step(tensor(z), 0)
    p = student_t(z, prototypes)
    expected = kl_divergence(dec_target(p), np.log(p))
    np.testing.assert_allclose(loss_of(model, z), expected, rtol=0, atol=4 * EPS32)
    by_z, by_name = gradients(model, z)
    assert np.isfinite(by_z).all() and np.isfinite(by_name["prototypes"]).all()
