"""A fitted estimator can be copied, saved and opened again, also without a GPU."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import skops.io
import torch
from sklearn.frozen import FrozenEstimator

from skdeepcluster import Autoencoder, SRKMeans

from .conftest import small_autoencoder, small_sr_kmeans
from .test_estimators import PlainModule


def through_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def through_joblib(model, path):
    joblib.dump(model, path / "model.joblib")
    return joblib.load(path / "model.joblib")


def through_joblib_mmap(model, path):
    joblib.dump(model, path / "model.joblib")
    return joblib.load(path / "model.joblib", mmap_mode="r")


def through_skops(model, path):
    saved = skops.io.dumps(model)
    untrusted = skops.io.get_untrusted_types(data=saved)
    own = {"skdeepcluster.autoencoder.Autoencoder", "skdeepcluster.sr_kmeans.SRKMeans"}
    assert {t for t in untrusted if t.startswith("skdeepcluster")} <= own
    return skops.io.loads(saved, trusted=untrusted)


def through_deepcopy(model, path):
    return copy.deepcopy(model)


WAYS = [through_pickle, through_joblib, through_joblib_mmap, through_skops, through_deepcopy]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["mlp", "conv", "callable", "frozen"])
def test_round_trip(blobs, tmp_path, way, network):
    X, _ = blobs
    autoencoder = {
        "mlp": small_autoencoder(),
        "conv": small_autoencoder(image_shape=(1, 2, 4)),
        "callable": small_autoencoder(module=PlainModule),
        "frozen": FrozenEstimator(small_autoencoder().fit(X)),
    }[network]
    model = small_sr_kmeans(autoencoder).fit(X)
    opened = way(model, tmp_path)
    np.testing.assert_array_equal(opened.labels_, model.labels_)
    np.testing.assert_array_equal(opened.predict(X), model.labels_)
    np.testing.assert_array_equal(opened.transform(X), model.transform(X))
    assert opened.score(X) == model.score(X)
    assert opened.history_ == model.history_
    # And it can be fitted anew.
    np.testing.assert_array_equal(opened.fit(X).labels_, model.labels_)


def test_module_instance_round_trip(blobs):
    X, _ = blobs
    model = small_sr_kmeans(small_autoencoder(module=PlainModule((8,), 2))).fit(X)
    opened = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(opened.transform(X), model.transform(X))


def test_architecture_is_that_of_the_fit(blobs):
    """Parameters that changed after the fit do not change what is opened."""
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X)
    expected = autoencoder.transform(X)
    autoencoder.set_params(n_components=7, hidden_layer_sizes=(3,))
    opened = pickle.loads(pickle.dumps(autoencoder))
    np.testing.assert_array_equal(opened.transform(X), expected)
    model = small_sr_kmeans().fit(X)
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(
        model.set_params(n_clusters=9, lam=5.0).predict_proba(X), expected
    )


def test_no_tensor_in_the_state(blobs):
    """Tensors would tie the file to a device; arrays open everywhere."""
    model = small_sr_kmeans().fit(blobs[0])
    state = model.__getstate__()
    state.update(state["autoencoder_"].__getstate__())

    def leaves(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return [leaf for item in value for leaf in leaves(item)]
        return [value]

    assert not any(isinstance(v, torch.Tensor | torch.nn.Module) for v in leaves(state))


def test_unfitted_estimators_round_trip():
    for estimator in (SRKMeans(5, lam=0.1), Autoencoder(3)):
        opened = pickle.loads(pickle.dumps(estimator))
        assert repr(opened) == repr(estimator)
