"""bfloat16 and compiled training: the same methods, the same interface, nearly the same numbers."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from skdeepcluster import DCN, IDEC, Autoencoder, SRKMeans
from skdeepcluster.networks import conv_autoencoder, mlp_autoencoder
from skdeepcluster.objective import JointLoss
from skdeepcluster.training import precision, training_dtype

from .conftest import METHODS, small, small_autoencoder

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_finds_the_same_groups(method, blobs):
    X, y = blobs
    autoencoder = small_autoencoder(max_epochs=30)
    model = small(method, autoencoder, max_epochs=10, precision="bfloat16").fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.95
    assert (model.predict(X) == model.labels_).all()
    assert model.autoencoder_.precision == "bfloat16"
    weights = model.autoencoder_.module_.state_dict().values()
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert model.transform(X).dtype == np.float64
    assert model.transform(X.astype(np.float32)).dtype == np.float32
    assert model.cluster_centers_.dtype == np.float64


def test_bfloat16_is_used_in_training_alone(blobs, monkeypatch):
    seen = {True: set(), False: set()}
    forward = torch.nn.Tanh.forward

    def spy(self, x):
        seen[torch.is_autocast_enabled("cpu")].add(x.dtype)
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Tanh, "forward", spy)
    X = blobs[0].astype(np.float32)
    model = small(DCN, precision="bfloat16").fit(X)
    model.predict(X)
    assert seen == {True: {torch.bfloat16}, False: {torch.float32}}


@pytest.mark.parametrize("reconstruct", [True, False])
def test_loss_in_bfloat16_is_that_in_float32_to_three_digits(reconstruct, blobs):
    X, _ = blobs
    models = [
        small(IDEC, reconstruct=reconstruct, precision=name).fit(X)
        for name in ("float32", "bfloat16")
    ]
    rows = [model.history_[0] for model in models]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-2)
    assert rows[0]["train_loss"] != rows[1]["train_loss"]


def test_gradients_in_bfloat16_are_those_in_float32_but_for_rounding():
    network = conv_autoencoder(
        (1, 12, 12),
        5,
        maps=(4, 6),
        kernel_sizes=(4, 5),
        strides=(2, 2),
        paddings=(0, 2),
        bounded=True,
    )
    x = torch.randn(64, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        network.train().zero_grad()
        network.generator = torch.Generator().manual_seed(1)
        loss, _ = JointLoss(network, dtype=dtype)(x, torch.arange(64))
        assert loss.dtype == torch.float32
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    exact, rounded = gradients
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 0.03 * exact.norm()


def test_float32_and_auto_on_a_small_network_are_one(blobs):
    X, _ = blobs
    a, b = (small(SRKMeans, precision=name).fit(X) for name in ("float32", "auto"))
    np.testing.assert_array_equal(a.transform(X), b.transform(X))


def test_auto_is_bfloat16_where_it_pays(monkeypatch):
    wide = mlp_autoencoder(784, 10, hidden_layer_sizes=(500,), bounded=True)
    narrow = mlp_autoencoder(64, 10, hidden_layer_sizes=(64,), bounded=True)
    conv = conv_autoencoder(
        (1, 28, 28),
        40,
        maps=(50, 50),
        kernel_sizes=(4, 5),
        strides=(2, 2),
        paddings=(0, 2),
        bounded=True,
    )
    for available in (True, False):
        monkeypatch.setattr(precision, "_has_bfloat16", lambda available=available: available)
        found = [training_dtype("auto", CPU, network) for network in (wide, narrow, conv)]
        fast = torch.bfloat16 if available else torch.float32
        assert found == [fast, torch.float32, torch.float32]
    assert training_dtype("bfloat16", CPU, narrow) == torch.bfloat16
    assert training_dtype("float32", CPU, wide) == torch.float32


def test_precision_is_inherited_unless_the_autoencoder_has_its_own(blobs):
    X, _ = blobs
    model = small(SRKMeans, small_autoencoder(precision="auto"), precision="bfloat16").fit(X)
    assert model.autoencoder_.precision == "auto"


def test_precision_is_part_of_the_cache_key(blobs, tmp_path):
    X, _ = blobs
    for name in ("float32", "bfloat16", "float32"):
        autoencoder = small_autoencoder(memory=str(tmp_path), precision=name).fit(X)
        fresh = clone(autoencoder).set_params(memory=None).fit(X)
        np.testing.assert_array_equal(autoencoder.transform(X), fresh.transform(X))


@pytest.mark.slow
def test_compiled_training_gives_nearly_the_same_network(blobs):
    X, _ = blobs
    parameters = {"noise": 0, "max_epochs": 5, "random_state": 0, "hidden_layer_sizes": (16,)}
    plain, compiled = (Autoencoder(2, compile=c, **parameters).fit(X) for c in (False, True))
    np.testing.assert_allclose(plain.transform(X), compiled.transform(X), rtol=1e-3, atol=1e-4)
    assert list(plain.module_.state_dict()) == list(compiled.module_.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_all_methods_compile(method, blobs, recwarn):
    X, y = blobs
    model = small(method, small_autoencoder(max_epochs=30), max_epochs=10, compile=True).fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.95
    assert model.autoencoder_.compile
