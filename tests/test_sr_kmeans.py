"""Fitted SRKMeans: what its attributes say, and what it finds."""

import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.pairwise import euclidean_distances

from skdeepcluster import Autoencoder, SRKMeans, clustering_accuracy
from skdeepcluster.sr_kmeans import SoftKMeans

from .conftest import small_autoencoder, small_sr_kmeans


@pytest.fixture(scope="module")
def fitted(blobs):
    X, _ = blobs
    return SRKMeans(3, lam=0.05, autoencoder=small_autoencoder(), random_state=0).fit(X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_posterior_from_public_attributes(fitted, blobs, dtype):
    X = blobs[0].astype(dtype)
    Z = fitted.transform(X).astype(np.float64)
    squared = np.square(Z[:, None] - fitted.cluster_centers_).sum(axis=2)
    expected = softmax(-squared / (fitted.lam * fitted.n_clusters), axis=1)
    np.testing.assert_allclose(fitted.predict_proba(X), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), squared.argmin(axis=1))


def test_distances_as_documented(fitted, blobs):
    X, _ = blobs
    distances = euclidean_distances(fitted.transform(X), fitted.cluster_centers_)
    np.testing.assert_array_equal(distances.argmin(axis=1), fitted.labels_)


def test_objective_from_public_attributes(fitted, blobs):
    """E at the optimal targets over N lam k, plus the reconstruction loss."""
    X, _ = blobs
    Z, temperature = fitted.transform(X), fitted.lam * 3
    squared = np.square(Z[:, None] - fitted.cluster_centers_).sum(axis=2)
    energy = -logsumexp(-squared / temperature, axis=1) - np.square(Z).sum(axis=1) / temperature
    expected = energy.mean() + fitted.autoencoder_.reconstruction_error_
    assert fitted.objective_ == pytest.approx(expected, rel=1e-9)
    assert fitted.score(X) == -fitted.objective_
    assert fitted.score(X[:40]) != fitted.score(X)


def test_autoencoder_is_the_jointly_trained_one(fitted, blobs):
    X, _ = blobs
    np.testing.assert_array_equal(fitted.autoencoder_.transform(X), fitted.transform(X))
    only_pretrained = small_autoencoder().fit(X)
    assert not np.allclose(only_pretrained.transform(X), fitted.transform(X), atol=1e-3)


def test_prototypes_are_the_weighted_means_of_the_last_epoch(blobs):
    """At the fixed point the soft assignments reproduce the prototypes they came from."""
    X, _ = blobs
    model = SRKMeans(3, lam=0.02, tol=0, max_epochs=60, random_state=0).fit(X.astype(np.float32))
    q = model.predict_proba(X.astype(np.float32))
    means = q.T @ model.transform(X.astype(np.float32)) / q.sum(axis=0)[:, None]
    np.testing.assert_allclose(means, model.cluster_centers_, atol=0.02)


def test_frozen_autoencoder_is_not_changed(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X)
    before = autoencoder.transform(X)
    model = small_sr_kmeans(FrozenEstimator(autoencoder)).fit(X)
    np.testing.assert_array_equal(autoencoder.transform(X), before)
    assert not np.array_equal(model.transform(X), before)
    # An autoencoder that is fitted but not frozen is a template like any other.
    template = small_sr_kmeans(autoencoder).fit(X)
    np.testing.assert_array_equal(autoencoder.transform(X), before)
    assert [row["phase"] for row in template.history_].count("pretraining") == 5


def test_frozen_autoencoder_of_other_features_is_refused(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X[:, :5])
    with pytest.raises(ValueError, match="features"):
        small_sr_kmeans(FrozenEstimator(autoencoder)).fit(X)


@pytest.mark.parametrize("k", [2, 5, 11, 24])
def test_no_empty_cluster_up_to_a_fifth_of_the_samples(blobs, k):
    X, _ = blobs
    model = small_sr_kmeans(n_clusters=k, max_epochs=10, lam=1e-4, tol=0).fit(X)
    assert np.bincount(model.labels_, minlength=k).min() >= 1
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_lost_clusters_are_reseeded_and_counted(blobs):
    """A prototype without any weight comes back at the worst represented sample."""
    z = torch.tensor(blobs[0])
    objective = SoftKMeans(1e-3, torch.zeros(4, 8, dtype=torch.float64))
    objective.start(z, torch.tensor(blobs[1]))
    assert objective.e_step(z, 0)["n_reseeded"] == 1
    sizes = torch.bincount(objective.log_posterior(z).argmax(dim=1), minlength=4)
    assert sizes.min() >= 1
    assert objective.e_step(z, 1)["n_reseeded"] == 0


def test_norms_are_measured_from_the_mean(blobs):
    """The centred loss does not feel a translation of the embedding; no common push is left."""
    z = torch.tensor(blobs[0]).requires_grad_(True)
    gradients = []
    for offset in (0.0, 5.0):
        objective = SoftKMeans(0.5, torch.zeros(3, 8, dtype=torch.float64), centred=True)
        objective.start(z.detach() + offset, torch.tensor(blobs[1]))
        loss = objective.loss(z + offset, torch.arange(120))
        gradients.append(torch.autograd.grad(loss, z)[0])
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-5)
    np.testing.assert_allclose(gradients[0].sum(dim=0), 0, atol=1e-5)


def test_one_sample():
    X = np.array([[1.0, 2.0, 3.0]])
    model = small_sr_kmeans(n_clusters=1).fit(X)
    assert model.labels_.tolist() == [0]
    assert np.isfinite(model.transform(X)).all()


def test_as_many_clusters_as_samples():
    X = np.random.default_rng(0).normal(size=(6, 3))
    model = small_sr_kmeans(n_clusters=6).fit(X)
    assert np.isfinite(model.cluster_centers_).all()
    np.testing.assert_array_equal(model.predict(X), model.labels_)


@pytest.mark.parametrize("lam", [1e-12, 1e-8])
def test_tiny_lam_is_hard_k_means(blobs, lam):
    X, _ = blobs
    model = small_sr_kmeans(lam=lam).fit(X)
    proba = model.predict_proba(X)
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.max(axis=1), 1)
    np.testing.assert_array_equal(proba.argmax(axis=1), model.labels_)
    assert all(np.isfinite(row["train_loss"]) for row in model.history_)


@pytest.mark.filterwarnings("ignore:lam=")
def test_large_lam_merges_but_stays_finite(blobs):
    X, _ = blobs
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = small_sr_kmeans(lam=1e6, max_epochs=30).fit(X)
    np.testing.assert_allclose(model.predict_proba(X), 1 / 3, atol=1e-3)


def test_blobs_are_found(blobs):
    X, y = blobs
    model = SRKMeans(3, random_state=0).fit(X)
    assert adjusted_rand_score(y, model.labels_) == 1.0
    assert model.converged_


def test_digits_above_k_means(digits):
    """The default call on real images, without a network that somebody tuned."""
    X, y = digits
    k_means = KMeans(10, n_init=10, random_state=0).fit_predict(X)
    labels = SRKMeans(10, random_state=0).fit_predict(X)
    assert clustering_accuracy(y, labels) > clustering_accuracy(y, k_means)
    nmi = normalized_mutual_info_score
    assert nmi(y, labels) > nmi(y, k_means) + 0.1
    assert np.bincount(labels).min() > 18  # a tenth of the mean size


def test_real_images_as_uint8(data_home):
    """MNIST by the convolutional network: the same labels for pixels as integers and as floats."""
    with np.load(data_home / "mnist.npz") as file:
        X, y = file["X"][-600:], file["y"][-600:]
    models = {
        dtype: SRKMeans(10, autoencoder=Autoencoder(max_epochs=8), max_epochs=4, random_state=0)
        for dtype in ("uint8", "float64")
    }
    for dtype, model in models.items():
        model.fit(X.astype(dtype))
        np.testing.assert_array_equal(model.predict(X.astype(dtype)), model.labels_)
    assert np.mean(models["uint8"].labels_ != models["float64"].labels_) <= 0.001
    assert normalized_mutual_info_score(y, models["uint8"].labels_) > 0.3
