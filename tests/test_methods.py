"""What all methods share, and what the attributes of each say."""

import pickle
from functools import partial

import numpy as np
import pytest
import skops.io
import torch
from scipy.special import softmax, xlogy
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from skorch.callbacks import Callback

from skdeepcluster import (
    DCN,
    DEPICT,
    IDEC,
    MIADM,
    Autoencoder,
    DeepKMeans,
    SRKMeans,
    annealing_schedule,
    base,
)
from skdeepcluster.dcn import HardKMeans
from skdeepcluster.deep_kmeans import DifferentiableKMeans
from skdeepcluster.idec import SharpenedDivergence
from skdeepcluster.networks import mlp_autoencoder
from skdeepcluster.objective import JointLoss
from skdeepcluster.training import Trainer, phase

from .conftest import METHODS, small, small_autoencoder

VARIANTS = {
    "SRKMeans": (SRKMeans, {}),
    "MIADM": (MIADM, {"lam": 0.01}),
    "MIADM-exact": (MIADM, {"target": "exact"}),
    "MI-D": (MIADM, {"solver": "direct", "lam": 0.01}),
    "DEPICT": (DEPICT, {"gamma": 0.5}),
    "DEPICT-dec": (DEPICT, {"target": "dec"}),
    "DKM_p": (DeepKMeans, {"alpha": 3.0}),
    "DKM_a": (DeepKMeans, {"alpha": "anneal"}),
    "DCN": (DCN, {}),
    "IDEC": (IDEC, {}),
    "DEC": (IDEC, {"reconstruct": False}),
}


@pytest.fixture(scope="module", params=VARIANTS)
def fitted(request, blobs):
    method, parameters = VARIANTS[request.param]
    return small(method, **parameters).fit(blobs[0])


def information(p):
    """Mutual information of posteriors (n, k)."""
    sizes = p.mean(axis=0)
    return xlogy(p, p).sum() / len(p) - xlogy(sizes, sizes).sum()


def divergence(q, p):
    """Mean KL(Q || P) of the rows."""
    return (xlogy(q, q) - xlogy(q, p)).sum() / len(q)


def normalised(q):
    return q / q.sum(axis=1, keepdims=True)


def clustering_loss(model, X):
    """The objective of the class's description without reconstruction, from public attributes."""
    Z = model.transform(X)
    D = np.square(Z[:, None] - model.cluster_centers_).sum(axis=2)
    if isinstance(model, SRKMeans):
        T = model.lam * model.n_clusters
        q = softmax(-D / T, axis=1)
        return ((q * D).sum() / T + xlogy(q, q).sum() - np.square(Z).sum() / T) / len(X)
    if isinstance(model, DCN):
        return model.lam / 2 * D.min(axis=1).mean()
    if isinstance(model, DeepKMeans):
        lam = 0.1 if model.alpha == "anneal" else 100.0
        return lam * (D * model.predict_proba(X)).sum(axis=1).mean()
    p = model.predict_proba(X)
    if isinstance(model, IDEC):
        return model.lam * divergence(normalised(p**2 / p.sum(axis=0)), p)
    if isinstance(model, DEPICT):
        if model.target == "dec":
            return divergence(normalised(p**2 / p.sum(axis=0)), p)
        q = normalised(p / p.sum(axis=0) ** (model.gamma / (1 + model.gamma)))
        sizes = q.mean(axis=0)
        return divergence(q, p) + model.gamma * xlogy(sizes, sizes).sum()
    penalty = model.lam * np.square(model.coef_).sum()
    if model.solver == "direct":
        return penalty - information(p)
    q = normalised(p**2 / np.sqrt((p**2).sum(axis=0)))
    if model.target == "exact":
        for _ in range(200):  # the damped fixed point
            sizes = np.sqrt(q.mean(axis=0) * normalised(p**2 / q.mean(axis=0)).mean(axis=0))
            q = normalised(p**2 / sizes)
    return (penalty - information(q) + 2 * divergence(q, p)) / 2


def test_objective_from_public_attributes(fitted, blobs):
    X, _ = blobs
    weight = {DeepKMeans: 8.0, DCN: 8.0}.get(type(fitted), 1.0)
    if not getattr(fitted, "reconstruct", True):
        weight = 0.0
    expected = clustering_loss(fitted, X) + weight * fitted.autoencoder_.reconstruction_error_
    assert fitted.objective_ == pytest.approx(expected, rel=1e-7)
    assert fitted.score(X) == -fitted.objective_


def test_labels_posterior_and_prediction_agree(fitted, blobs):
    X, _ = blobs
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    assert fitted.labels_.dtype == np.int32
    if isinstance(fitted, DCN):
        with pytest.raises(AttributeError):
            fitted.predict_proba(X)
        return
    p = fitted.predict_proba(X)
    np.testing.assert_array_equal(p.argmax(axis=1), fitted.labels_)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_proba(X[:5]), p[:5], rtol=1e-7)


def test_history_and_how_training_ended(fitted):
    joint = [row for row in fitted.history_ if row["phase"] != "pretraining"]
    assert len(joint) == fitted.n_iter_ <= 4
    for row in joint:
        total = row["reconstruction_loss"] + row["clustering_loss"]
        assert row["train_loss"] == pytest.approx(total, rel=1e-12)
        assert np.isfinite(row["objective"])
        assert 0 <= row["label_change"] <= 1
        if not isinstance(fitted, DCN):
            assert 0 <= row["mutual_information"] <= np.log(3)
    plain = (int, float, str, bool)
    assert all(type(value) in plain for row in fitted.history_ for value in row.values())
    assert fitted.converged_ == (fitted.stop_reason_ == "tol")


def test_logistic_form_of_the_posterior(fitted, blobs):
    """Proposition 2 on fitted models: prototypes at a temperature are weights and biases."""
    if isinstance(fitted, DCN | IDEC):
        assert not hasattr(fitted, "coef_")
        return
    X, _ = blobs
    logits = fitted.transform(X) @ fitted.coef_.T + fitted.intercept_
    np.testing.assert_allclose(
        softmax(logits, axis=1), fitted.predict_proba(X), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("method", [MIADM, DEPICT])
def test_centers_of_a_logistic_posterior_are_its_weighted_means(blobs, method):
    X, _ = blobs
    model = small(method).fit(X)
    p = model.predict_proba(X)
    means = p.T @ model.transform(X) / p.sum(axis=0)[:, None]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-9)


def test_parameters_set_after_the_fit_change_nothing(blobs):
    X, _ = blobs
    changes = {
        SRKMeans: {"lam": 5.0},
        MIADM: {"lam": 5.0, "solver": "direct", "target": "exact"},
        DEPICT: {"gamma": 5.0, "target": "dec"},
        DeepKMeans: {"lam": 5.0, "alpha": 0.5},
        DCN: {"lam": 5.0, "init_count": 3},
        IDEC: {"lam": 5.0, "reconstruct": False},
    }
    for method, parameters in changes.items():
        model = small(method).fit(X)
        before = model.score(X), model.predict(X)
        model.set_params(n_clusters=9, **parameters)
        assert model.score(X) == before[0], method
        np.testing.assert_array_equal(model.predict(X), before[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_same_numbers_of_any_type_same_training(small_images, method, dtype):
    counts = small_images[0].reshape(300, 64)
    reference = small(method).fit(counts.astype(np.float64))
    model = small(method).fit(counts.astype(dtype))
    assert model.history_[-1]["train_loss"] == reference.history_[-1]["train_loss"]
    assert np.mean(model.labels_ != reference.labels_) <= 0.005
    np.testing.assert_array_equal(model.predict(counts.astype(dtype)), model.labels_)


@pytest.mark.parametrize("method", METHODS)
def test_images_go_through_the_convolutional_network(small_images, method):
    X, _ = small_images
    model = small(method, small_autoencoder(max_epochs=2), n_clusters=5).fit(X)
    assert model.autoencoder_.image_shape_ == (1, 8, 8)
    np.testing.assert_array_equal(model.predict(X.reshape(300, 64)), model.labels_)
    assert model.inverse_transform(model.cluster_centers_).shape == (5, 64)


@pytest.mark.parametrize("name", VARIANTS)
def test_blobs_are_found(blobs, name):
    X, y = blobs
    method, parameters = VARIANTS[name]
    if name == "DKM_p":
        parameters = {}
    model = method(3, random_state=0, **parameters).fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.97


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_and_opened(blobs, name):
    X, _ = blobs
    method, parameters = VARIANTS[name]
    model = small(method, **parameters).fit(X)
    saved = skops.io.dumps(model)
    untrusted = skops.io.get_untrusted_types(data=saved)
    for opened in (
        pickle.loads(pickle.dumps(model)),
        skops.io.loads(saved, trusted=untrusted),
    ):
        np.testing.assert_array_equal(opened.predict(X), model.labels_)
        assert opened.score(X) == model.score(X)
        assert opened.history_ == model.history_
        np.testing.assert_array_equal(opened.fit(X).labels_, model.labels_)


@pytest.mark.filterwarnings("ignore:Only .* clusters have samples")
@pytest.mark.parametrize("name", VARIANTS)
def test_degenerate_data_stays_finite(name):
    method, parameters = VARIANTS[name]
    few = np.repeat(np.eye(4), 10, axis=0)
    with pytest.warns(ConvergenceWarning, match="4 distinct rows"):
        model = small(method, n_clusters=6, **parameters).fit(few)
    assert np.isfinite(model.cluster_centers_).all()
    assert 2 <= len(np.unique(model.labels_)) <= 4
    np.testing.assert_array_equal(model.predict(few), model.labels_)
    assert np.isfinite(model.score(few))

    constant = np.full((30, 4), 7.0)
    with pytest.warns(ConvergenceWarning, match="1 distinct rows"):
        model = small(method, n_clusters=2, **parameters).fit(constant)
    assert np.isfinite(model.cluster_centers_).all()
    assert np.isfinite(model.score(constant))

    one = small(method, n_clusters=1, **parameters).fit([[1.0, 2.0, 3.0]])
    assert one.labels_.tolist() == [0]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("k", [2, 11, 24])
def test_no_empty_cluster_up_to_a_fifth_of_the_samples(blobs, name, k):
    method, parameters = VARIANTS[name]
    model = small(method, n_clusters=k, tol=0, **parameters).fit(blobs[0])
    assert np.bincount(model.labels_, minlength=k).min() >= 1
    np.testing.assert_array_equal(model.predict(blobs[0]), model.labels_)


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        (MIADM, {"solver": "adam"}, "solver"),
        (MIADM, {"target": "dec"}, "target"),
        (MIADM, {"lam": -1e-3}, "lam"),
        (DEPICT, {"gamma": -0.5}, "gamma"),
        (DEPICT, {"gamma": np.nan}, "gamma"),
        (DEPICT, {"target": "exact"}, "target"),
        (DeepKMeans, {"lam": -1.0}, "lam"),
        (DeepKMeans, {"alpha": "annealed"}, "alpha"),
        (DeepKMeans, {"alpha": 0}, "alpha"),
        (DeepKMeans, {"alpha": [1.0, -2.0]}, "alpha=.* positive numbers"),
        (DeepKMeans, {"alpha": []}, "alpha=.* positive numbers"),
        (DeepKMeans, {"alpha": [[1.0]]}, "alpha=.* positive numbers"),
        (DeepKMeans, {"alpha": [1.0, np.inf]}, "alpha=.* positive numbers"),
        (DCN, {"init_count": -1}, "init_count"),
        (DCN, {"lam": -1.0}, "lam"),
        (IDEC, {"lam": -0.1}, "lam"),
        (IDEC, {"reconstruct": "no"}, "reconstruct"),
    ],
)
def test_unfit_parameters_are_refused_before_training(
    monkeypatch, blobs, method, parameters, message
):
    def train(*args, **kwargs):
        raise AssertionError("training was paid for before the parameter was refused")

    monkeypatch.setattr(Trainer, "train", train)
    model = method(3, **parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(blobs[0])
    with pytest.raises(NotFittedError):
        model.predict(blobs[0])


@pytest.mark.parametrize("method", [m for m in METHODS if m is not SRKMeans])
def test_an_unbounded_embedding_is_welcome(blobs, method):
    X, y = blobs
    autoencoder = small_autoencoder(embedding_activation="identity", max_epochs=30)
    model = small(method, autoencoder, max_epochs=10).fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.9


class RecordBatches(Callback):
    """Keeps the sample indices of every batch."""

    def __init__(self):
        self.batches = []

    def on_batch_begin(self, net, batch, training, **kwargs):
        self.batches.append(batch[1].tolist())


def test_fair_comparison_same_network_labels_and_minibatches(small_images, monkeypatch):
    """One pretrained network, one initial clustering, one order of the minibatches for all."""
    X = small_images[0].reshape(300, 64)
    autoencoder = small_autoencoder(n_components=5).fit(X)
    labels, orders = [], []
    initial_labels = base.initial_labels

    def recorded(*args):
        labels.append(initial_labels(*args))
        return labels[-1]

    monkeypatch.setattr(base, "initial_labels", recorded)
    for method in METHODS:
        record = RecordBatches()
        model = small(
            method, FrozenEstimator(autoencoder), n_clusters=10, callbacks=[record], tol=0
        )
        model.fit(X)
        assert model.n_iter_ >= 2
        orders.append(record.batches)
    assert len(labels) == len(METHODS)
    for method, own, order in zip(METHODS, labels, orders, strict=True):
        np.testing.assert_array_equal(own, labels[0], err_msg=method.__name__)
        # Ten batches an epoch, and no method ends before the second.
        assert order[:20] == orders[0][:20], method.__name__
        assert sorted(i for batch in order[:10] for i in batch) == list(range(300))
        assert order[:10] != order[10:20]


@pytest.mark.parametrize("name", VARIANTS)
def test_global_random_states_are_untouched(blobs, name):
    method, parameters = VARIANTS[name]
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    small(method, small_autoencoder(random_state=None), random_state=None, **parameters).fit(
        blobs[0]
    )
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


@pytest.mark.parametrize("name", VARIANTS)
def test_same_seed_same_bits(blobs, name):
    X, _ = blobs
    method, parameters = VARIANTS[name]
    first, second = (
        small(method, small_autoencoder(noise=0.2, random_state=None), **parameters).fit(X)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)


@pytest.fixture(scope="module")
def digits_autoencoder(digits):
    return Autoencoder(random_state=0).fit(digits[0])


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "DKM_a"])
def test_digits_above_k_means_on_the_same_embedding(digits, digits_autoencoder, name):
    """Real images from one pretrained network: no method loses what k-means finds there."""
    X, y = digits
    method, parameters = VARIANTS[name]
    if name == "DKM_p":
        parameters = {}
    model = method(
        10, autoencoder=FrozenEstimator(digits_autoencoder), random_state=0, **parameters
    )
    k_means = KMeans(10, n_init=10, random_state=0).fit_predict(digits_autoencoder.transform(X))
    nmi = normalized_mutual_info_score
    labels = model.fit_predict(X)
    assert nmi(y, labels) > nmi(y, k_means)
    assert np.bincount(labels).min() > 18  # a tenth of the mean size


def test_warm_up_holds_the_labels_until_it_ends(small_images):
    """DKM, DCN and IDEC train towards the initial labels first, then by their own rule."""
    X, y = small_images[0].reshape(300, 64), small_images[1]
    autoencoder = FrozenEstimator(small_autoencoder(n_components=5, max_epochs=20).fit(X))
    for method in (DeepKMeans, DCN, IDEC):
        model = small(method, autoencoder, n_clusters=10, init=y, max_epochs=20, tol=0, lam=1.0)
        history = model.fit(X).history_
        n_warm = sum(row["phase"] == "warm-up" for row in history)
        assert 2 <= n_warm <= 10 < model.n_iter_
        assert [row["phase"] for row in history[n_warm:]] == ["joint"] * (model.n_iter_ - n_warm)
        # Whose assignments differ from the labels is better off once they are let go: by DCN an
        # epoch later, for each epoch has the assignments that the last one stored.
        losses = [row["clustering_loss"] for row in history]
        assert losses[n_warm + (method is DCN)] < losses[n_warm - 1], method


def hard(labels, k):
    return torch.nn.functional.one_hot(torch.tensor(labels), k).double()


def test_warm_up_losses_by_hand():
    """Distances to the means of the labels; cross-entropy to them, for IDEC."""
    rng = np.random.default_rng(0)
    z, labels = torch.tensor(rng.normal(size=(30, 4))), np.arange(30) % 3
    means = (hard(labels, 3).T @ z) / 10
    own = (z - means[labels]).square().sum(dim=1)
    some = torch.arange(5, 25)
    index = torch.tensor(labels)

    deep = DifferentiableKMeans(
        torch.zeros(3, 4, dtype=torch.float64), np.array([2.0]), lam=0.7, n_features=9
    )
    dcn = HardKMeans(torch.zeros(3, 4, dtype=torch.float64), lam=0.7, n_features=9)
    idec = SharpenedDivergence(torch.zeros(3, 4, dtype=torch.float64), lam=0.7, reconstruct=True)
    for objective in (deep, dcn, idec):
        assert objective.warm_up
        objective.start(z + 1, index)
        objective.warming = True
        objective.e_step(z, 0, index)
        np.testing.assert_allclose(objective.prototypes.detach(), means, rtol=1e-12)
    assert deep.loss(z[some], some).item() == pytest.approx(0.7 * float(own[some].mean()))
    assert float(dcn.loss(z[some], some)) == pytest.approx(0.35 * float(own[some].mean()))
    log_p = idec.log_posterior(z)[some, labels[5:25]]
    assert idec.loss(z[some], some).item() == pytest.approx(-0.7 * float(log_p.mean()), rel=1e-6)
    # Afterwards each has its own rule.
    for objective in (deep, dcn, idec):
        objective.warming = False
        objective.e_step(z, 1)
    assert deep.loss(z[some], some).item() != pytest.approx(0.7 * float(own[some].mean()))
    assert idec.loss(z[some], some).item() != pytest.approx(-0.7 * float(log_p.mean()), rel=1e-3)


def test_running_means_wait_for_the_end_of_the_warm_up():
    network = mlp_autoencoder(4, 2, hidden_layer_sizes=(3,), bounded=True)
    objective = HardKMeans(torch.zeros(2, 2, dtype=torch.float64), lam=1.0, n_features=4)
    objective.start(torch.rand(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]))
    loss, x = JointLoss(network, objective), torch.rand(6, 4)
    objective.warming = True
    loss.after_step(x, torch.arange(6))
    assert objective.counts.tolist() == [0, 0]
    objective.warming = False
    loss.after_step(x, torch.arange(6))
    assert objective.counts.sum() == 6
    assert loss.network.training


def test_schedule_of_alpha_has_no_warm_up(blobs):
    model = small(DeepKMeans, alpha=[1.0, 2.0], max_epochs=6, tol=0).fit(blobs[0])
    joint = [row for row in model.history_ if row["phase"] != "pretraining"]
    assert [row["phase"] for row in joint] == ["joint"] * len(joint)
    # Training may end once alpha has its last value, and not before.
    assert [row["alpha"] for row in joint][:4] == [1.0, 1.0, 1.0, 2.0]


def test_annealing_starts_from_scratch_unless_the_network_is_fitted(blobs):
    X, _ = blobs
    scratch = small(DeepKMeans, alpha="anneal", max_epochs=80, tol=0).fit(X)
    assert {row["phase"] for row in scratch.history_} == {"joint"}
    alphas = [row["alpha"] for row in scratch.history_]
    np.testing.assert_allclose(alphas, np.repeat(annealing_schedule(), 2)[: len(alphas)])
    assert scratch.autoencoder_.n_iter_ == 0
    start = FrozenEstimator(small_autoencoder().fit(X))
    frozen = small(DeepKMeans, start, alpha="anneal", max_epochs=80, tol=0).fit(X)
    assert frozen.history_[0]["reconstruction_loss"] < scratch.history_[0]["reconstruction_loss"]


def test_dec_leaves_the_decoder_alone(blobs):
    """Even by weight decay, which needs no gradient but 0."""
    X, _ = blobs
    start = small_autoencoder().fit(X)
    decay = partial(torch.optim.AdamW, weight_decay=10.0)
    models = {
        reconstruct: small(
            IDEC, FrozenEstimator(start), reconstruct=reconstruct, optimizer=decay
        ).fit(X)
        for reconstruct in (True, False)
    }
    before = start.module_.decoder[0][0].weight
    decoders = {r: m.autoencoder_.module_.decoder[0][0].weight for r, m in models.items()}
    assert torch.equal(decoders[False], before)
    assert not torch.equal(decoders[True], before)


def test_a_schedule_that_comes_back_to_its_last_value_is_not_over(blobs):
    model = small(DeepKMeans, alpha=[10.0, 0.1, 10.0], tol=1.0, max_epochs=30).fit(blobs[0])
    assert model.stop_reason_ == "tol"
    assert model.n_iter_ == 21


def test_posterior_has_the_alpha_it_was_trained_with(blobs):
    """A callback that ends training in the middle of the schedule."""

    class Stop(Callback):
        def on_epoch_end(self, net, **kwargs):
            raise KeyboardInterrupt

    X, _ = blobs
    model = small(DeepKMeans, alpha=[1.0, 5.0], max_epochs=2, callbacks=[Stop()]).fit(X)
    assert (model.stop_reason_, model.n_iter_) == ("callback", 1)
    D = np.square(model.transform(X)[:, None] - model.cluster_centers_).sum(axis=2)
    np.testing.assert_allclose(model.predict_proba(X), softmax(-D, axis=1), rtol=1e-9)


@pytest.mark.parametrize("init", ["k-means", KMeans(), np.arange(120) % 3])
def test_annealing_from_scratch_refuses_an_initial_clustering(blobs, init):
    X, _ = blobs
    with pytest.raises(ValueError, match=r"(?s)init=.* is not used"):
        DeepKMeans(3, alpha="anneal", init=init).fit(X)
    frozen = FrozenEstimator(small_autoencoder().fit(X))
    small(DeepKMeans, frozen, alpha="anneal", init=init).fit(X)


def test_schedules_of_fewer_values_than_one():
    with pytest.raises(ValueError, match="n_values=0 must be at least 1"):
        annealing_schedule(0)
    assert annealing_schedule(1).tolist() == [0.1]


def test_gamma_changes_the_fit_and_dec_has_none(small_images, monkeypatch):
    # An untrained network's clusters run into each other: look at what gamma does there.
    monkeypatch.setattr(phase, "_MODULARITY_LOSS", 1.0)
    X = small_images[0].reshape(300, 64)
    fits = {
        (target, gamma): small(
            DEPICT, n_clusters=10, gamma=gamma, target=target, max_epochs=12, tol=0
        ).fit(X)
        for target in ("depict", "dec")
        for gamma in (0.0, 5.0)
    }
    balanced, free = fits["depict", 5.0], fits["depict", 0.0]
    assert not np.array_equal(balanced.coef_, free.coef_)
    np.testing.assert_array_equal(fits["dec", 0.0].coef_, fits["dec", 5.0].coef_)
    assert fits["dec", 0.0].objective_ == fits["dec", 5.0].objective_


def test_penalty_of_mi_adm_bounds_the_weights(small_images, blobs):
    X = small_images[0].reshape(300, 64)
    autoencoder = FrozenEstimator(small_autoencoder(n_components=10, max_epochs=20).fit(X))
    sizes = []
    for lam in (0.0, 0.1):
        model = small(MIADM, autoencoder, n_clusters=10, lam=lam, max_epochs=40, lr=0.01, tol=0)
        sizes.append(np.square(model.fit(X).coef_).sum())
    assert sizes[1] < sizes[0] / 2
    # Clusters so tight that a sure posterior would be natural do not start with huge weights.
    assert np.abs(MIADM(3, random_state=0).fit(blobs[0]).coef_).max() < 5


def test_an_empty_cluster_of_a_logistic_posterior_is_filled(blobs):
    """Weights that give a cluster nothing are replaced; the centers belong to the new ones."""
    X, _ = blobs
    model = small(MIADM).fit(X)
    z = torch.tensor(model.transform(X))
    objective = model._fitted_objective()
    objective.intercept.data[1] = -1e6
    n_reseeded = model._keep(objective, z)
    p = softmax(z.numpy() @ model.coef_.T + model.intercept_, axis=1)
    assert n_reseeded == 1
    assert np.bincount(p.argmax(axis=1), minlength=3).min() > 0
    np.testing.assert_allclose(model.cluster_centers_, p.T @ z.numpy() / p.sum(axis=0)[:, None])


def test_a_reseeded_prototype_of_dcn_can_move():
    z = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.2, 5.0]], dtype=torch.float64)
    objective = HardKMeans(torch.zeros(2, 2, dtype=z.dtype), lam=1.0, n_features=2, init_count=1.0)
    objective.start(z, torch.tensor([0, 0, 0, 0]))
    objective.prototypes = torch.tensor([[0.0, 0.0], [90.0, 0.0]], dtype=z.dtype)
    objective.counts = torch.tensor([2000.0, 2000.0], dtype=z.dtype)
    assert objective.e_step(z, 0)["n_reseeded"] == 1
    assert objective.counts.tolist() == [2000, 1]
    before = objective.prototypes[1].clone()
    objective.after_step(z, torch.arange(4))
    assert not torch.equal(objective.prototypes[1], before)


@pytest.mark.slow
def test_annealed_deep_k_means_above_k_means_without_pretraining(digits):
    X, y = digits
    nmi = normalized_mutual_info_score
    k_means = KMeans(10, n_init=10, random_state=0).fit_predict(X)
    model = DeepKMeans(10, alpha="anneal", random_state=0)
    assert nmi(y, model.fit_predict(X)) > nmi(y, k_means)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (MIADM, {"lam": 1e-12}),
        (MIADM, {"lam": 1e6, "solver": "direct"}),
        (DEPICT, {"gamma": 0.0}),
        (DEPICT, {"gamma": 1e8}),
        (DeepKMeans, {"alpha": 1e8}),
        (DeepKMeans, {"alpha": 1e-6, "lam": 1e-12}),
        (DeepKMeans, {"lam": 1e8}),
        (DCN, {"lam": 0.0}),
        (DCN, {"lam": 1e8, "init_count": 1e8}),
        (IDEC, {"lam": 0.0}),
        (IDEC, {"lam": 1e8}),
    ],
)
def test_extreme_parameters_stay_finite(blobs, method, parameters):
    X, _ = blobs
    model = small(method, **parameters).fit(X)
    assert all(np.isfinite(row["train_loss"]) for row in model.history_)
    assert np.isfinite(model.cluster_centers_).all()
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite(model.score(X))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert np.bincount(model.labels_, minlength=3).min() >= 1
    if method is not DCN:
        p = model.predict_proba(X)
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
