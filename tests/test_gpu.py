"""The same estimators on a CUDA device: `pytest -m gpu`."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from skdeepcluster import SRKMeans

from .conftest import small_autoencoder, small_sr_kmeans

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


def test_blobs_are_found(blobs):
    X, y = blobs
    assert adjusted_rand_score(y, SRKMeans(3, device="cuda", random_state=0).fit_predict(X)) == 1


def test_saved_fit_opens_on_the_cpu(blobs):
    X, _ = blobs
    model = small_sr_kmeans(device="cuda").fit(X)
    opened = pickle.loads(pickle.dumps(model))
    assert not next(opened.autoencoder_.module_.parameters()).is_cuda
    np.testing.assert_allclose(opened.transform(X), model.transform(X), atol=1e-6)
