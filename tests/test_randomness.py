"""The same seed gives the same bits, wherever it runs, and nobody else's random state changes."""

import random

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.frozen import FrozenEstimator

from .conftest import small_autoencoder, small_sr_kmeans


def noisy_model(**parameters):
    """A model that uses all random streams: weights, order, noise, initial clustering."""
    return small_sr_kmeans(small_autoencoder(noise=0.2, random_state=None), **parameters)


def fit_in_worker(X):
    """Centres and embeddings of a fit with one thread, as plain arrays."""
    torch.set_num_threads(1)
    model = noisy_model().fit(X)
    return model.cluster_centers_, model.transform(X)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_bit_identical_under_joblib(blobs, one_thread, backend):
    X, _ = blobs
    expected = fit_in_worker(X)
    results = Parallel(n_jobs=2, backend=backend)(delayed(fit_in_worker)(X) for _ in range(4))
    for centers, embedding in results:
        np.testing.assert_array_equal(centers, expected[0])
        np.testing.assert_array_equal(embedding, expected[1])


def test_other_seed_other_network(blobs):
    X, _ = blobs
    first, second = noisy_model().fit(X), noisy_model(random_state=1).fit(X)
    assert not np.array_equal(first.transform(X), second.transform(X))


def test_no_seed_draws_from_the_system(blobs):
    X, _ = blobs
    np.random.seed(0)  # noqa: NPY002
    first = noisy_model(random_state=None).fit(X)
    np.random.seed(0)  # noqa: NPY002
    second = noisy_model(random_state=None).fit(X)
    assert not np.array_equal(first.transform(X), second.transform(X))


def test_random_state_instance(blobs):
    X, _ = blobs
    first = noisy_model(random_state=np.random.RandomState(3)).fit(X)
    second = noisy_model(random_state=np.random.RandomState(3)).fit(X)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))


@pytest.mark.parametrize("random_state", [0, None])
def test_global_random_states_are_untouched(small_images, random_state):
    X, _ = small_images
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    model = small_sr_kmeans(
        small_autoencoder(image_shape=(1, 8, 8), random_state=None), random_state=random_state
    )
    model.fit(X)
    model.predict(X)
    assert torch.equal(torch.get_rng_state(), before[0])
    for now, then in zip(np.random.get_state(), before[1], strict=True):  # noqa: NPY002
        np.testing.assert_array_equal(now, then)
    assert random.getstate() == before[2]


def test_pretraining_does_not_depend_on_the_clustering(blobs):
    """Separate streams: a grid over lam pretrains the very same network each time."""
    X, _ = blobs
    histories = [noisy_model(lam=lam).fit(X).autoencoder_.history_ for lam in (1e-4, 1e-3)]
    losses = [[row["train_loss"] for row in history] for history in histories]
    assert losses[0] == losses[1]


def test_frozen_start_equals_the_fit_that_pretrains(blobs):
    """Nothing leaks from pretraining into the joint phase but the network."""
    X, _ = blobs
    whole = small_sr_kmeans(small_autoencoder(random_state=5)).fit(X)
    frozen = small_sr_kmeans(FrozenEstimator(small_autoencoder(random_state=5).fit(X))).fit(X)
    np.testing.assert_array_equal(whole.cluster_centers_, frozen.cluster_centers_)
    np.testing.assert_array_equal(whole.labels_, frozen.labels_)


def test_explicit_settings_of_the_autoencoder_win(blobs):
    X, _ = blobs
    losses = {
        (own, seed): noisy_model(random_state=seed)
        .set_params(autoencoder__random_state=own)
        .fit(X)
        .autoencoder_.history_[-1]["train_loss"]
        for own in (0, 7)
        for seed in (1, 2)
    }
    assert losses[0, 1] == losses[0, 2] != losses[7, 1] == losses[7, 2]
