"""The same estimators on a CUDA device: `pytest -m gpu`."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from skorch.callbacks import Callback

from skdeepcluster import DCN

from .conftest import METHODS, small, small_autoencoder, small_sr_kmeans
from .test_methods import VARIANTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("image_shape", [None, (1, 2, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_fit_and_predict(blobs, image_shape, dtype):
    X = (10 * blobs[0] + 150).clip(0, 255).astype(dtype)
    autoencoder = small_autoencoder(image_shape=image_shape, noise=0.1)
    model = small_sr_kmeans(autoencoder, device="cuda").fit(X)
    assert next(model.autoencoder_.module_.parameters()).is_cuda
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_array_equal(model.predict_proba(X).argmax(axis=1), model.labels_)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_method(blobs, name):
    X, _ = blobs
    method, parameters = VARIANTS[name]
    model = small(method, device="cuda", **parameters).fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert np.isfinite(model.score(X))
    if method is not DCN:
        np.testing.assert_array_equal(model.predict_proba(X).argmax(axis=1), model.labels_)


@pytest.mark.parametrize("method", METHODS)
def test_blobs_are_found(blobs, method):
    X, y = blobs
    assert adjusted_rand_score(y, method(3, device="cuda", random_state=0).fit_predict(X)) == 1


@pytest.mark.parametrize("method", METHODS)
def test_saved_fit_opens_on_the_cpu(blobs, method):
    X, _ = blobs
    model = small(method, device="cuda").fit(X)
    opened = pickle.loads(pickle.dumps(model))
    assert not next(opened.autoencoder_.module_.parameters()).is_cuda
    np.testing.assert_allclose(opened.transform(X), model.transform(X), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{"precision": "auto"}, {"compile": True}])
def test_bfloat16_and_compiled_kernels(blobs, method, options):
    X, y = blobs
    autoencoder = small_autoencoder(max_epochs=30)
    model = small(method, autoencoder, max_epochs=10, device="cuda", **options).fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.95


class NoSync(Callback):
    """Makes waiting for the device an error, from the first batch of an epoch to its last."""

    def __init__(self, n_batches):
        self.n_batches = n_batches

    def on_epoch_begin(self, net, **_):
        self.count = 0

    def on_batch_begin(self, net, **_):
        self.count += 1
        torch.cuda.set_sync_debug_mode("error")

    def on_batch_end(self, net, **_):
        if self.count == self.n_batches:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", VARIANTS)
def test_an_epoch_never_waits_for_the_device(blobs, name):
    X, _ = blobs
    method, parameters = VARIANTS[name]
    parameters = {"batch_size": 40, **parameters, "callbacks": [NoSync(3)]}
    autoencoder = small_autoencoder(batch_size=40, callbacks=[NoSync(3)])
    try:
        small(method, autoencoder, device="cuda", **parameters).fit(X)
    finally:
        torch.cuda.set_sync_debug_mode("default")
