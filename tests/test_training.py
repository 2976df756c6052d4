"""Training control: callbacks, interruption, divergence, dead networks, history."""

import copy
import signal
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from torch import nn
from torch.optim.lr_scheduler import StepLR

from skdeepcluster import Autoencoder, DeepKMeans, SRKMeans
from skdeepcluster.graph import modularity, neighbor_graph
from skdeepcluster.training import Rows, Scaling, Trainer
from skdeepcluster.training.rows import Batches

from .conftest import METHODS, small, small_autoencoder, small_sr_kmeans
from .test_estimators import PlainModule


class StopAfter(Callback):
    """Ends training as skorch's own EarlyStopping does."""

    def __init__(self, n_epochs):
        self.n_epochs = n_epochs

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == self.n_epochs:
            raise KeyboardInterrupt


class Interrupt(Callback):
    """Ctrl-C in the middle of a callback: not a raise statement of the callback's own."""

    def on_epoch_end(self, net, **kwargs):
        import _thread

        _thread.interrupt_main()
        for _ in range(10**7):
            pass


def test_history_tells_the_phases(blobs):
    X, _ = blobs
    model = small_sr_kmeans(max_epochs=12, tol=0).fit(X)
    phases = [row["phase"] for row in model.history_]
    assert phases[:5] == ["pretraining"] * 5
    joint = model.history_[5:]
    assert len(joint) == model.n_iter_ <= 12
    assert {row["phase"] for row in joint} == {"warm-up", "joint"}
    assert [row["epoch"] for row in joint] == list(range(1, model.n_iter_ + 1))
    for row in joint:
        total = row["reconstruction_loss"] + row["clustering_loss"]
        assert row["train_loss"] == pytest.approx(total, rel=1e-12)
        assert 0 <= row["label_change"] <= 1
        assert 0 <= row["mutual_information"] <= np.log(3)
        assert 0 <= row["smallest_cluster"] <= 40
    plain = (int, float, str, bool)
    assert all(type(value) in plain for row in model.history_ for value in row.values())


def test_tol_stops_and_max_epochs_stops(blobs):
    X, _ = blobs
    loose = small_sr_kmeans(max_epochs=50, tol=1.0).fit(X)
    assert (loose.stop_reason_, loose.converged_) == ("tol", True)
    tight = small_sr_kmeans(max_epochs=2, tol=0).fit(X)
    assert tight.n_iter_ == 2


def test_callback_ends_its_own_phase_only(blobs):
    X, _ = blobs
    model = small_sr_kmeans(small_autoencoder(callbacks=[StopAfter(2)])).fit(X)
    assert model.autoencoder_.stop_reason_ == "callback"
    assert model.autoencoder_.n_iter_ == 2
    assert model.stop_reason_ != "callback"
    np.testing.assert_array_equal(model.predict(X), model.labels_)

    model = small_sr_kmeans(callbacks=[StopAfter(1)]).fit(X)
    assert (model.stop_reason_, model.converged_, model.n_iter_) == ("callback", False, 1)
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_skorch_callbacks_work(blobs):
    X, _ = blobs
    stopping = EarlyStopping(monitor="train_loss", patience=2, threshold=10.0, sink=lambda _: None)
    autoencoder = small_autoencoder(max_epochs=50, callbacks=[stopping]).fit(X)
    assert autoencoder.stop_reason_ == "callback"
    assert autoencoder.n_iter_ < 50
    steps = LRScheduler(StepLR, step_size=1, gamma=0.1)
    frozen_early = small_autoencoder(
        noise=0, lr_schedule="constant", max_epochs=8, callbacks=[steps]
    ).fit(X)
    losses = [row["train_loss"] for row in frozen_early.history_]
    assert losses[-1] == pytest.approx(losses[-2], rel=1e-3)


@pytest.fixture
def ctrl_c():
    """Ctrl-C as at a terminal; a shell starts background jobs with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("phase", ["pretraining", "joint"])
def test_ctrl_c_propagates_and_leaves_nothing_fitted(blobs, ctrl_c, phase):
    X, _ = blobs
    autoencoder = small_autoencoder(callbacks=[Interrupt()] if phase == "pretraining" else None)
    model = small_sr_kmeans(autoencoder, callbacks=[Interrupt()] if phase == "joint" else None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_failed_refit_forgets_the_old_fit(blobs, ctrl_c):
    X, _ = blobs
    model = small_sr_kmeans().fit(X)
    model.callbacks = [Interrupt()]
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_divergence_is_an_error(blobs):
    X, _ = blobs
    diverging = partial(torch.optim.SGD, momentum=0.9)
    with pytest.raises(ValueError, match=r"diverged.*lr=1e\+15"):
        Autoencoder(embedding_activation="identity", optimizer=diverging, lr=1e15).fit(X)


class DeadModule(PlainModule):
    """Maps everything to one point, whatever is learnt."""

    def encode(self, x):
        return 0 * super().encode(x)


def test_dead_network_is_an_error(blobs):
    with pytest.raises(ValueError, match="died in training"):
        small_autoencoder(module=DeadModule).fit(blobs[0])


def test_dead_network_is_trained_anew(blobs):
    """The first network dies, the second lives."""
    made = []

    def mortal(input_shape, n_components):
        made.append(len(made))
        return (DeadModule if len(made) == 1 else PlainModule)(input_shape, n_components)

    autoencoder = small_autoencoder(module=mortal).fit(blobs[0])
    assert len(made) == 2
    assert np.ptp(autoencoder.transform(blobs[0])) > 0.01


def test_saturated_network_is_trained_anew(digits, monkeypatch):
    """With a large learning rate the embedding ends at 1 and -1, where the tanh is flat."""
    X = digits[0][:300]
    autoencoder = small_autoencoder(n_components=5, hidden_layer_sizes=(64, 64), lr=0.1)
    slower = np.square(clone(autoencoder).fit(X).transform(X))
    monkeypatch.setattr("skdeepcluster.autoencoder._RESTARTS", 0)
    saturated = np.square(clone(autoencoder).fit(X).transform(X))
    assert (1 - saturated).mean() < 0.01
    assert (1 - slower).mean() > 0.1


def test_network_that_stays_saturated_is_kept(blobs, monkeypatch):
    """Bits are few, but not nothing."""
    monkeypatch.setattr("skdeepcluster.autoencoder._SATURATED", 1.0)
    assert len(np.unique(small_autoencoder().fit_transform(blobs[0]), axis=0)) > 100


def test_users_module_is_neither_trained_nor_moved(blobs):
    X, _ = blobs
    module = PlainModule((8,), 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = small_sr_kmeans(small_autoencoder(module=module, n_components=5)).fit(X)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert model.autoencoder_.module_ is not module
    assert model.transform(X).shape == (120, 2)
    assert model.get_feature_names_out().shape == (2,)


def test_users_module_keeps_its_weights_and_its_frozen_layers(blobs):
    module = PlainModule((8,), 2)
    module.inner.weight.requires_grad_(False)
    fitted = small_autoencoder(module=module).fit(blobs[0])
    assert torch.equal(fitted.module_.inner.weight, module.inner.weight)
    assert not torch.equal(fitted.module_.outer.weight, module.outer.weight)


def test_users_module_with_batch_norm_and_dropout(blobs):
    X = blobs[0][:113]

    class Normed(PlainModule):
        def __init__(self, shape, n_components):
            super().__init__(shape, n_components)
            self.norm = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1))

        def encode(self, x):
            return super().encode(self.norm(x))

    # 113 = 7 * 16 + 1: the last row alone could not be normalised.
    model = small_sr_kmeans(small_autoencoder(module=Normed, batch_size=16), batch_size=16).fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.transform(X[:3]), model.transform(X)[:3], rtol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda shape, p: torch.nn.Linear(8, 2), "no method encode"),
        (lambda shape, p: FlatModule(shape, p), "size of the embedding"),
        (lambda shape, p: PlainModule((4,), p), "must be equal|cannot be multiplied"),
    ],
)
def test_networks_of_the_wrong_shape(blobs, make, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        small_autoencoder(module=make).fit(blobs[0])


class FlatModule(PlainModule):
    """Forgets an axis."""

    def encode(self, x):
        return super().encode(x)[:, 0]


def test_unbounded_module_is_refused(blobs):
    class Unbounded(PlainModule):
        bounded = False

    for module in (Unbounded, Unbounded((8,), 2)):
        with pytest.raises(ValueError, match="bounded=True"):
            SRKMeans(3, autoencoder=Autoencoder(module=module)).fit(blobs[0])


def test_lam_above_the_merging_threshold_warns(blobs):
    X, _ = blobs
    with pytest.warns(UserWarning, match=r"lam=50 is above .* = 2 nu / n_clusters"):
        small_sr_kmeans(lam=50.0).fit(X)


@pytest.mark.filterwarnings("error")
def test_defaults_do_not_warn(blobs, digits):
    SRKMeans(3, random_state=0).fit(blobs[0])
    SRKMeans(10, random_state=0, max_epochs=2, autoencoder=Autoencoder(max_epochs=2)).fit(digits[0])


def test_verbose_prints_a_row_per_epoch(blobs, capsys):
    X, _ = blobs
    small_sr_kmeans().fit(X)
    assert capsys.readouterr().out == ""
    small_sr_kmeans(small_autoencoder(max_epochs=3), max_epochs=4, tol=0, verbose=1).fit(X)
    printed = capsys.readouterr().out
    assert "reconstruction_loss" in printed
    assert "label_change" in printed


@pytest.mark.parametrize("optimizer", ["AdamW", "RMSprop", torch.optim.Adam])
def test_optimizers(blobs, optimizer):
    model = small_sr_kmeans(small_autoencoder(optimizer=optimizer), optimizer=optimizer)
    assert np.isfinite(model.fit(blobs[0]).objective_)


def test_optimizer_options_by_partial(blobs):
    X, _ = blobs
    strong = partial(torch.optim.AdamW, weight_decay=100.0)
    decayed = small_autoencoder(optimizer=strong).fit(X)
    plain = small_autoencoder(optimizer="AdamW").fit(X)
    norms = [sum(float(p.square().sum()) for p in a.module_.parameters()) for a in (decayed, plain)]
    assert norms[0] < 0.9 * norms[1]


def test_one_cycle_ends_near_zero(blobs):
    """The last steps hardly move the weights; with a constant rate they do."""
    X, _ = blobs
    moved = {}
    for schedule in ("one-cycle", "constant"):
        weights = []

        class Watch(Callback):
            def on_epoch_end(self, net, **kwargs):
                weights.append(net.module_.network.decoder[-1].weight.detach().clone())  # noqa: B023

        small_autoencoder(max_epochs=30, lr_schedule=schedule, callbacks=[Watch()]).fit(X)
        moved[schedule] = float((weights[-1] - weights[-2]).abs().mean())
    assert moved["one-cycle"] < 0.1 * moved["constant"]


def test_trainer_equals_a_bare_loop(blobs):
    """The weights after three epochs are bit for bit those of the loop one would write by hand."""
    from skdeepcluster.networks import build, mlp_autoencoder
    from skdeepcluster.objective import JointLoss

    X = torch.tensor(blobs[0])
    scaling = Scaling.of(X.numpy())

    def network():
        return build(lambda: mlp_autoencoder(8, 2, hidden_layer_sizes=(16,), bounded=True), seed=0)

    trained = network()
    Trainer(
        JointLoss(trained),
        optimizer="Adam",
        lr=1e-3,
        batch_size=25,
        order=torch.Generator().manual_seed(1),
        device=torch.device("cpu"),
    ).train(Rows(X.numpy(), scaling, (8,), torch.device("cpu")), 3)

    bare = network()
    optimizer = torch.optim.Adam(bare.parameters(), lr=1e-3, fused=True)
    order = torch.Generator().manual_seed(1)
    inputs = ((X - scaling.mean) / scaling.deviation).float()
    for _ in range(3):
        for index in torch.randperm(120, generator=order).split(25):
            x = inputs[index]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(bare.decode(bare.encode(x)), x).backward()
            optimizer.step()
    for ours, theirs in zip(trained.parameters(), bare.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("n", "sizes"), [(10, [4, 4, 2]), (9, [4, 5]), (8, [4, 4]), (3, [3]), (1, [1]), (5, [5])]
)
def test_batch_sizes(n, sizes):
    rows = Rows(np.eye(n), Scaling(0.0, 1.0), (n,), torch.device("cpu"))
    batches = Batches(rows, 4, torch.Generator().manual_seed(0))
    found = list(batches)
    assert [len(x) for x, _ in found] == sizes
    assert len(batches) == len(sizes)
    assert sorted(torch.cat([index for _, index in found]).tolist()) == list(range(n))
    for x, index in found:
        assert torch.equal(x, torch.eye(n)[index])


def test_reconstruction_error_and_score_are_the_mean_squared_error(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X)
    scaled = (X - X.mean()) / X.std()
    decoded = autoencoder.inverse_transform(autoencoder.transform(X))
    error = np.square((decoded - X) / X.std()).mean()
    assert autoencoder.reconstruction_error_ == pytest.approx(error, rel=1e-9)
    assert autoencoder.score(X) == -autoencoder.reconstruction_error_
    assert autoencoder.mean_ == pytest.approx(X.mean())
    assert autoencoder.scale_ == pytest.approx(X.std())
    assert scaled.std() == pytest.approx(1)


def test_stop_in_the_middle_of_an_epoch_leaves_no_half_record(blobs):
    class StopInBatch(Callback):
        def on_batch_end(self, net, **kwargs):
            if len(net.history) == 2:
                raise KeyboardInterrupt

    model = small_sr_kmeans(callbacks=[StopInBatch()]).fit(blobs[0])
    assert (model.n_iter_, model.stop_reason_) == (1, "callback")
    assert "phase" in model.history_[-1]
    np.testing.assert_array_equal(model.predict(blobs[0]), model.labels_)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": False}])
def test_the_users_own_kernel_is_respected(blobs, options):
    optimizer = partial(torch.optim.Adam, **options)
    seen = []

    class Look(Callback):
        def on_train_begin(self, net, **kwargs):
            seen.append(net.optimizer_.defaults)

    small_autoencoder(optimizer=optimizer, callbacks=[Look()]).fit(blobs[0])
    assert {key: seen[0][key] for key in options} == options
    assert not seen[0]["fused"]


def test_a_network_may_be_made_from_another_fitted_one(blobs):
    """Unpickling an Autoencoder builds a network, also while another one is being built."""
    X, _ = blobs
    first = small_autoencoder().fit(X)
    second = small_autoencoder(module=lambda shape, p: copy.deepcopy(first).module_, lr=1e-6)
    np.testing.assert_allclose(second.fit(X).transform(X), first.transform(X), atol=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda shape, p: None, "no torch.nn.Module"), (lambda shape, p: Frozen(shape, p), "trained")],
)
def test_networks_that_cannot_be_trained(blobs, make, message):
    with pytest.raises(ValueError, match=message):
        small_autoencoder(module=make).fit(blobs[0])


class Frozen(PlainModule):
    """Nothing to learn."""

    def __init__(self, shape, n_components):
        super().__init__(shape, n_components)
        self.requires_grad_(False)


def test_the_epoch_after_the_warm_up_has_soft_targets(blobs):
    sharpest = []

    class Look(Callback):
        def on_epoch_begin(self, net, **kwargs):
            targets = net.module_.objective._targets
            sharpest.append(float(targets.max(dim=1).values.min()))

    model = small_sr_kmeans(lam=0.05, max_epochs=8, tol=0, callbacks=[Look()]).fit(blobs[0])
    phases = [row["phase"] for row in model.history_][5:]
    hard = [sharp == 1 for sharp in sharpest]
    assert hard == [phase == "warm-up" for phase in phases]
    assert hard.count(True) == 4


def test_a_built_in_network_given_as_module_keeps_its_weights(blobs):
    X, _ = blobs
    first = small_autoencoder(max_epochs=50).fit(X)
    second = small_autoencoder(module=first.module_, max_epochs=1, lr=1e-8).fit(X)
    np.testing.assert_allclose(second.transform(X), first.transform(X), atol=1e-4)


@pytest.mark.filterwarnings("ignore:lam=")
def test_training_stops_before_a_cluster_is_gone(blobs):
    """Above the merging threshold the prototypes meet, and all but one lose their samples."""
    model = small_sr_kmeans(lam=1e6, max_epochs=30).fit(blobs[0])
    assert model.stop_reason_ == "vanishing cluster"
    assert not model.converged_
    assert model.n_iter_ < 30
    assert model.history_[-1]["smallest_cluster"] < 4
    # The epoch that lost it is undone: every cluster is there.
    assert np.bincount(model.labels_, minlength=3).min() > 4


def test_a_cluster_that_was_tiny_from_the_start_does_not_end_training(blobs):
    X, y = blobs
    labels = y.copy()
    labels[5] = 3
    for method in METHODS:
        model = small(method, n_clusters=4, init=labels, max_epochs=8, tol=0).fit(X)
        assert model.stop_reason_ != "vanishing cluster", method
        assert np.bincount(model.labels_, minlength=4).min() >= 1


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_callers_torch_modes_do_not_reach_training(blobs, mode, precision):
    X, _ = blobs
    expected = small(SRKMeans, precision=precision).fit(X)
    with mode():
        model = small(SRKMeans, precision=precision).fit(X)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert model.history_[0]["train_loss"] == expected.history_[0]["train_loss"]


def test_callback_may_stop_before_the_first_epoch(blobs):
    X, _ = blobs

    class Never(Callback):
        def on_train_begin(self, net, **kwargs):
            raise KeyboardInterrupt

    model = small(SRKMeans, callbacks=[Never()]).fit(X)
    assert model.stop_reason_ == "callback"
    assert model.n_iter_ == 0


class WritesIntoItsInput(nn.Module):
    """A network that changes the batch it is given."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

    def encode(self, x):
        return self.encoder(x.mul_(0.5))

    def decode(self, z):
        return self.decoder(z)


def test_a_network_that_writes_into_its_input_changes_nothing_else(blobs):
    X = blobs[0][:, :4]
    autoencoder = Autoencoder(module=WritesIntoItsInput(), max_epochs=2, random_state=0).fit(X)
    np.testing.assert_array_equal(autoencoder.transform(X), autoencoder.transform(X))
    rows = autoencoder._rows(X, torch.device("cpu"))
    before = rows.take(torch.arange(5)).clone()
    for chunk in rows.chunks():
        chunk.zero_()
    assert torch.equal(rows.take(torch.arange(5)), before)


@pytest.mark.parametrize("seed", range(3))
def test_training_stops_before_touching_clusters_run_into_each_other(seed):
    X = load_iris().data
    model = SRKMeans(3, random_state=seed).fit(X)
    assert np.bincount(model.labels_).min() >= 15
    assert model.stop_reason_ == "falling modularity"
    values = [row["modularity"] for row in model.history_ if "modularity" in row]
    assert values[-1] < max(values) - 0.02
    # Training went back to the epoch before that.
    rows = [row for row in model.history_ if row.get("modularity") == max(values)]
    assert np.bincount(model.labels_).min() in [row["smallest_cluster"] for row in rows]


def test_modularity_in_the_history_is_that_of_the_labels(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X)
    model = small_sr_kmeans(FrozenEstimator(autoencoder), tol=0).fit(X)
    links = neighbor_graph(autoencoder.transform(X).astype(np.float32))
    assert model.history_[-1]["modularity"] == pytest.approx(modularity(links, model.labels_))


def test_without_a_graph_there_is_no_modularity(blobs):
    X, _ = blobs
    for model in (small_sr_kmeans(n_clusters=1), small(DeepKMeans, alpha="anneal")):
        assert "modularity" not in model.fit(X).history_[-1]
