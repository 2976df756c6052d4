"""scikit-learn's own checks, and the checks it keeps for its own estimators."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_get_feature_names_out_error,
    check_global_output_transform_pandas,
    check_param_validation,
    check_set_output_transform,
    check_set_output_transform_pandas,
    check_set_output_transform_polars,
    check_transformer_get_feature_names_out,
    check_transformer_get_feature_names_out_pandas,
    parametrize_with_checks,
)

from skdeepcluster import DCN, DEPICT, IDEC, MIADM, Autoencoder, DeepKMeans, SRKMeans
from skdeepcluster.networks import conv_autoencoder

from .conftest import METHODS, small, small_autoencoder, small_sr_kmeans


class PlainModule(torch.nn.Module):
    """The least a user's network needs."""

    bounded = True

    def __init__(self, shape, n_components):
        super().__init__()
        n_features = int(np.prod(shape))
        self.shape = shape
        self.inner = torch.nn.Linear(n_features, n_components)
        self.outer = torch.nn.Linear(n_components, n_features)

    def encode(self, x):
        return torch.tanh(self.inner(x.flatten(1)))

    def decode(self, z):
        return self.outer(z).view(-1, *self.shape)


class RowOfPixels(torch.nn.Module):
    """The convolutional network for rows of any width: images of one line."""

    bounded = True

    def __init__(self, shape, n_components):
        super().__init__()
        layers = {"maps": (4, 4), "kernel_sizes": (4, 5), "strides": (2, 2), "paddings": (0, 2)}
        self.network = conv_autoencoder((1, 1, *shape), n_components, **layers, bounded=True)

    def encode(self, x):
        return self.network.encode(x[:, None, None])

    def decode(self, z):
        return self.network.decode(z).flatten(1)


ESTIMATORS = {
    "autoencoder": small_autoencoder(),
    "autoencoder-deep-linear": small_autoencoder(
        hidden_layer_sizes=(8, 6, 12), embedding_activation="identity", noise=0.2
    ),
    "autoencoder-user-module": small_autoencoder(module=PlainModule),
    "sr-kmeans": small_sr_kmeans(),
    "sr-kmeans-one-cluster": small_sr_kmeans(n_clusters=1),
    "sr-kmeans-conv": small_sr_kmeans(
        small_autoencoder(module=RowOfPixels, max_epochs=40, lr=0.01)
    ),
    "sr-kmeans-init": small_sr_kmeans(init=KMeans(n_init=1), lam=0.05),
    "sr-kmeans-wide": small_sr_kmeans(small_autoencoder(hidden_layer_sizes=(30, 7), noise=0.1)),
    "mi-adm": small(MIADM),
    "mi-adm-exact": small(MIADM, target="exact", lam=0.0),
    "mi-d": small(MIADM, solver="direct"),
    "depict": small(DEPICT),
    "depict-dec": small(DEPICT, target="dec"),
    "deep-k-means": small(DeepKMeans),
    "deep-k-means-unbounded": small(
        DeepKMeans, small_autoencoder(embedding_activation="identity"), alpha=[1.0, 10.0]
    ),
    "deep-k-means-annealed": small(DeepKMeans, alpha="anneal", max_epochs=60, lam=0.1),
    "dcn": small(DCN),
    "dcn-without-count": small(DCN, init_count=0),
    "idec": small(IDEC),
    "dec": small(IDEC, reconstruct=False),
}


# Two of scikit-learn's checks give sparse X with a y of four classes to everything that has
# predict_proba, and want four columns of it (two if the tags say that it has but two classes).
for _estimator in ESTIMATORS.values():
    if hasattr(_estimator, "predict_proba") and _estimator.n_clusters > 1:
        _estimator.set_params(n_clusters=4)


def columns_of_a_classifier(estimator):
    """What cannot be so where there is one cluster only."""
    if getattr(estimator, "n_clusters", None) != 1:
        return {}
    checks = ["check_estimator_sparse_array", "check_estimator_sparse_matrix"]
    return dict.fromkeys(checks, "wants the columns of a classifier of four classes")


@parametrize_with_checks(list(ESTIMATORS.values()), expected_failed_checks=columns_of_a_classifier)
def test_sklearn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "name", ["autoencoder", "sr-kmeans", "mi-adm", "depict", "deep-k-means", "dcn", "idec"]
)
@pytest.mark.parametrize(
    "check",
    [
        check_dataframe_column_names_consistency,
        check_get_feature_names_out_error,
        check_global_output_transform_pandas,
        check_param_validation,
        check_set_output_transform,
        check_set_output_transform_pandas,
        check_set_output_transform_polars,
        check_transformer_get_feature_names_out,
        check_transformer_get_feature_names_out_pandas,
    ],
    ids=lambda check: check.__name__,
)
def test_checks_for_sklearns_own_estimators(name, check):
    estimator = clone(ESTIMATORS[name])
    check(type(estimator).__name__, estimator)


@pytest.mark.parametrize("image_shape", [(1, 2, 4), (2, 2, 2)])
def test_conv_network_behind_flat_rows(image_shape, blobs):
    """The estimator checks make data of any width, which only a network for rows can take."""
    X, _ = blobs
    autoencoder = small_autoencoder(image_shape=image_shape)
    model = small_sr_kmeans(autoencoder).fit(X)
    assert model.autoencoder_.image_shape_ == image_shape
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.transform(X[:7]), model.transform(X)[:7], rtol=1e-7)
    assert model.inverse_transform(model.cluster_centers_).shape == (3, 8)


@pytest.mark.parametrize("method", METHODS)
def test_one_cluster(blobs, method):
    X, _ = blobs
    model = small(method, n_clusters=1).fit(X)
    assert set(model.labels_) == {0}
    if method is not DCN:
        np.testing.assert_array_equal(model.predict_proba(X), np.ones((len(X), 1)))
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize("method", METHODS)
def test_feature_names_out(blobs, method):
    model = small(method).fit(blobs[0])
    name = method.__name__.lower()
    assert list(model.get_feature_names_out()) == [f"{name}0", f"{name}1"]


@pytest.mark.parametrize("method", METHODS)
def test_pipeline_as_last_and_as_middle_step(blobs, method):
    X, _ = blobs
    last = make_pipeline(StandardScaler(), small(method))
    labels = last.fit_predict(X)
    np.testing.assert_array_equal(last.predict(X), labels)
    # Hard assignments have no probabilities.
    assert hasattr(last, "predict_proba") == (method is not DCN)
    if method is not DCN:
        assert last.predict_proba(X).shape == (len(X), 3)

    middle = make_pipeline(small(method), KMeans(3, n_init=1, random_state=0))
    assert middle.fit_predict(X).shape == (len(X),)

    columns = ColumnTransformer([("embed", small_autoencoder(), [0, 1, 2])])
    assert columns.fit_transform(X).shape == (len(X), 2)


LOSS_GRIDS = {
    SRKMeans: {"lam": [1e-4, 1e-3]},
    MIADM: {"lam": [0.0, 1e-2]},
    DEPICT: {"gamma": [0.5, 1.0]},
    DeepKMeans: {"lam": [0.1], "alpha": [10.0, "anneal"]},
    DCN: {"lam": [0.1, 1.0]},
    IDEC: {"lam": [0.1, 1.0]},
}


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_grid_search_reaches_the_loss_and_the_network(blobs, method, n_jobs):
    X, y = blobs
    grid = {
        **LOSS_GRIDS[method],
        "autoencoder__n_components": [2, 3],
        "autoencoder__hidden_layer_sizes": [(8,), (8, 4)],
    }
    search = GridSearchCV(
        small(method), grid, cv=2, scoring="adjusted_rand_score", n_jobs=n_jobs
    ).fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    best = search.best_estimator_
    assert best.cluster_centers_.shape == (3, search.best_params_["autoencoder__n_components"])


@pytest.mark.parametrize("method", METHODS)
def test_grid_search_without_scoring_uses_score(blobs, method):
    search = GridSearchCV(small(method), {"lr": [1e-3, 1e-2]}, cv=2).fit(blobs[0])
    assert np.isfinite(search.best_score_)


def test_clone_does_not_share_the_network(blobs):
    model = small_sr_kmeans().fit(blobs[0])
    copy = clone(model)
    assert copy.autoencoder is not model.autoencoder
    assert not hasattr(copy, "labels_")
    assert copy.get_params()["autoencoder__hidden_layer_sizes"] == (16,)


def test_defaults_are_valid_and_repr_shows_what_differs():
    assert repr(SRKMeans(n_clusters=3, lam=0.5)) == "SRKMeans(lam=0.5, n_clusters=3)"
    assert repr(Autoencoder()) == "Autoencoder()"


def test_frozen_autoencoder_survives_clone_and_grid_search(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder().fit(X)
    before = autoencoder.transform(X)
    search = GridSearchCV(
        small_sr_kmeans(FrozenEstimator(autoencoder)), {"lam": [1e-3, 1e-2]}, cv=2
    ).fit(X)
    np.testing.assert_array_equal(autoencoder.transform(X), before)
    assert [row["phase"] for row in search.best_estimator_.history_].count("pretraining") == 0
