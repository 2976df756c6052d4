"""Choosing models without labels."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skdeepcluster import (
    DCN,
    Autoencoder,
    DeepKMeans,
    SingleFit,
    SRKMeans,
    input_silhouette,
    neighbor_agreement,
    scan_n_clusters,
)
from skdeepcluster.training import Trainer

from .conftest import METHODS, small, small_autoencoder


@pytest.mark.parametrize("method", METHODS)
def test_silhouette_is_that_of_the_input(blobs, method):
    X, _ = blobs
    model = small(method).fit(X)
    assert input_silhouette(model, X) == pytest.approx(silhouette_score(X, model.labels_))
    assert input_silhouette(model, pd.DataFrame(X)) == input_silhouette(model, X)


def test_silhouette_of_images_and_of_a_pipeline(small_images):
    X, _ = small_images
    model = small(SRKMeans, small_autoencoder(image_shape=(1, 8, 8))).fit(X)
    flat = X.reshape(len(X), -1)
    assert input_silhouette(model, X) == input_silhouette(model, flat)
    # A pipeline is judged by what goes into it, not by what its last step sees.
    pipeline = Pipeline([("scale", StandardScaler()), ("cluster", KMeans(3, n_init=1))]).fit(flat)
    expected = silhouette_score(flat, pipeline.predict(flat))
    assert input_silhouette(pipeline, flat) == pytest.approx(expected)


class Labels:
    """A clusterer that predicts what it is told."""

    def __init__(self, labels):
        self.labels = np.asarray(labels)

    def predict(self, X):
        return self.labels


def test_silhouette_where_there_is_none():
    X = np.arange(6.0)[:, None]
    assert input_silhouette(Labels([0] * 6), X) == -1
    assert input_silhouette(Labels(range(6)), X) == -1


def test_silhouette_of_many_samples_takes_the_same_part_for_all():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=5000)
    X = rng.normal(size=(5000, 3)) + 20 * y[:, None]
    value = input_silhouette(Labels(y), X)
    assert value == input_silhouette(Labels(y), X)
    assert value == pytest.approx(silhouette_score(X, y), abs=0.01)
    assert input_silhouette(Labels(1 - y), X) == pytest.approx(value, rel=1e-12)


def test_neighbor_agreement_by_hand():
    """Two groups of 12; one sample of the first is labelled like the second."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(12, 2)), 100 + rng.normal(size=(12, 2))])
    truth = np.repeat([0, 1], 12)
    assert neighbor_agreement(Labels(truth), X) == 1
    assert neighbor_agreement(Labels(np.zeros(24, int)), X) == 0
    wrong = truth.copy()
    wrong[0] = 1
    # Of a sample's 11 fellows 10 are neighbours: which one is left out, the distances say.
    distances = np.square(X[:12, None] - X[:12]).sum(axis=2)
    farthest = distances.argmax(axis=1)
    disagreeing = 10 + sum(farthest[i] != 0 for i in range(1, 12))
    chance = (11 / 24) ** 2 + (13 / 24) ** 2
    expected = (1 - disagreeing / 240 - chance) / (1 - chance)
    assert neighbor_agreement(Labels(wrong), X) == pytest.approx(expected, rel=1e-12)


def test_neighbor_agreement_of_chance_is_zero_and_of_few_samples_finite():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    assert abs(neighbor_agreement(Labels(rng.integers(4, size=4000)), X)) < 0.02
    assert neighbor_agreement(Labels([0, 1, 1]), np.array([[0.0], [5.0], [6.0]])) < 1


@pytest.mark.parametrize("scoring", [input_silhouette, neighbor_agreement])
def test_scores_prefer_digits_to_halves_of_the_picture(digits, scoring):
    X, y = digits
    assert scoring(Labels(y), X) > scoring(Labels((X[:, :32].sum(axis=1) > 150).astype(int)), X)


def test_single_fit_fits_once_on_everything(blobs):
    X, _ = blobs
    ((train, test),) = SingleFit().split(X)
    np.testing.assert_array_equal(train, np.arange(120))
    np.testing.assert_array_equal(test, np.arange(120))
    ((train, _),) = SingleFit().split(X.tolist())
    assert len(train) == 120
    assert SingleFit().get_n_splits(X) == 1
    result = cross_validate(
        small(DCN), X, scoring=input_silhouette, cv=SingleFit(), return_estimator=True
    )
    expected = small(DCN).fit(X)
    np.testing.assert_array_equal(result["estimator"][0].labels_, expected.labels_)
    assert result["test_score"].tolist() == [input_silhouette(expected, X)]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_grid_over_lam_and_alpha_in_a_pipeline_without_labels(blobs, n_jobs):
    X, _ = blobs
    pipeline = Pipeline([("scale", StandardScaler()), ("cluster", small(DeepKMeans))])
    grid = {"cluster__lam": [0.1, 1.0], "cluster__alpha": [0.01, 100.0]}
    search = GridSearchCV(
        pipeline, grid, scoring=input_silhouette, cv=SingleFit(), n_jobs=n_jobs
    ).fit(X)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_score_ == scores.max()
    assert input_silhouette(search.best_estimator_, X) == search.best_score_


def test_scan_starts_annealing_from_scratch_each_time(blobs):
    X, _ = blobs
    model = small(DeepKMeans, alpha="anneal", max_epochs=40)
    scan = scan_n_clusters(model, X, [3])
    assert scan.score.tolist() == [input_silhouette(model.fit(X), X)]


@pytest.mark.parametrize(
    ("model", "n_clusters", "message"),
    [
        (small(SRKMeans), [], "n_clusters is empty"),
        (small(SRKMeans), [2, 0], "n_clusters"),
        (small(SRKMeans), [2, 500], "n_samples=120 should be >= n_clusters=500"),
        (small(SRKMeans, lam=-1.0), [2], "lam"),
        (small(SRKMeans, small_autoencoder(embedding_activation="identity")), [2], "bounded"),
    ],
)
def test_scan_refuses_before_any_training(blobs, monkeypatch, model, n_clusters, message):
    def train(*args, **kwargs):
        raise AssertionError("training was paid for")

    monkeypatch.setattr(Trainer, "train", train)
    with pytest.raises(ValueError, match=message):
        scan_n_clusters(model, blobs[0], n_clusters)


@pytest.mark.parametrize("method", METHODS)
def test_scan_fits_as_a_fit_of_its_own_and_pretrains_once(blobs, monkeypatch, method):
    X, _ = blobs
    expected = {
        k: small(method, small_autoencoder(random_state=None), n_clusters=k).fit(X) for k in (2, 3)
    }
    fits = []
    fit = Autoencoder._fit
    monkeypatch.setattr(
        Autoencoder,
        "_fit",
        lambda self, *args, **kwargs: fits.append(1) or fit(self, *args, **kwargs),
    )
    model = small(method, small_autoencoder(random_state=None))
    scan = scan_n_clusters(model, X, [2, 3])
    assert len(fits) == 1
    assert not hasattr(model, "labels_")
    assert scan.n_clusters.tolist() == [2, 3]
    for row, k in enumerate((2, 3)):
        assert scan.score[row] == input_silhouette(expected[k], X)
        assert scan.smallest_cluster[row] == np.bincount(expected[k].labels_, minlength=k).min()
        assert scan.n_iter[row] == expected[k].n_iter_
    assert pd.DataFrame(scan).shape == (2, 4)


def test_scan_finds_the_number_of_blobs_from_a_frozen_network(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder(max_epochs=30).fit(X)
    before = autoencoder.transform(X)
    scan = scan_n_clusters(small(SRKMeans, FrozenEstimator(autoencoder)), X, range(2, 6))
    assert scan.n_clusters[scan.score.argmax()] == 3
    np.testing.assert_array_equal(autoencoder.transform(X), before)
    # Any other score will do.
    sizes = scan_n_clusters(
        small(SRKMeans, FrozenEstimator(autoencoder)), X, [2], scoring=lambda model, X: len(X)
    )
    assert sizes.score.tolist() == [120]
