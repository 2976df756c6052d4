"""What may go in, what comes out, and what is refused before any training."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn.cluster import DBSCAN, KMeans
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdeepcluster import (
    Autoencoder,
    SRKMeans,
    graph,
    initial,
    input_silhouette,
    neighbor_agreement,
    scan_n_clusters,
)
from skdeepcluster.training import Trainer

from .conftest import METHODS, small, small_autoencoder, small_sr_kmeans

TYPES = [
    np.float16,
    np.float32,
    np.float64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    ">f8",
    ">i4",
]


@pytest.fixture
def counts(small_images):
    """(300, 64) integers from 0 to 16."""
    return small_images[0].reshape(300, 64)


@pytest.fixture
def no_training(monkeypatch):
    """Fail as soon as any training starts."""

    def train(*args, **kwargs):
        raise AssertionError("training was paid for before the input was refused")

    monkeypatch.setattr(Trainer, "train", train)


@pytest.mark.parametrize("dtype", TYPES)
def test_same_numbers_of_any_type_same_result(counts, dtype):
    reference = small_sr_kmeans().fit(counts.astype(np.float64))
    X = counts.astype(dtype)
    model = small_sr_kmeans().fit(X)
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    np.testing.assert_array_equal(model.labels_, model.predict_proba(X).argmax(axis=1))
    # Training sees the very same batches; only the final encoding differs in its precision.
    assert model.history_[-1]["train_loss"] == reference.history_[-1]["train_loss"]
    assert np.mean(model.labels_ != reference.labels_) <= 0.001


def test_bool_is_zero_and_one(counts):
    X = counts > 7
    model = small_sr_kmeans().fit(X)
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    np.testing.assert_array_equal(model.labels_, small_sr_kmeans().fit_predict(X.astype(float)))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float32, np.float32),
        (np.uint8, np.float32),
        (np.int16, np.float32),
        (bool, np.float32),
        (np.float64, np.float64),
        (np.int32, np.float64),
        (np.int64, np.float64),
    ],
)
def test_type_of_the_embedding(counts, dtype, expected):
    X = counts.astype(dtype)
    model = small_sr_kmeans().fit(X)
    Z = model.transform(X)
    assert Z.dtype == expected
    assert model.predict_proba(X).dtype == np.float64
    assert model.labels_.dtype == np.int32
    assert model.cluster_centers_.dtype == np.float64
    assert model.inverse_transform(Z).dtype == expected


def test_containers_of_the_same_numbers(counts, tmp_path):
    X = counts.astype(np.float64)
    expected = small_sr_kmeans().fit(X)
    names = [f"pixel{i}" for i in range(64)]
    path = tmp_path / "X.npy"
    np.save(path, X)
    containers = {
        "list": X.tolist(),
        "fortran": np.asfortranarray(X),
        "memmap": np.load(path, mmap_mode="r"),
        "strided": np.repeat(X, 2, axis=0)[::2],
        "reversed": X[::-1][::-1],
        "pandas": pd.DataFrame(X, columns=names),
        "polars": pl.DataFrame(X, schema=names),
        "tensor": torch.tensor(X),
    }
    for name, container in containers.items():
        model = small_sr_kmeans().fit(container)
        np.testing.assert_array_equal(model.labels_, expected.labels_, err_msg=name)
        np.testing.assert_array_equal(model.predict(container), model.labels_, err_msg=name)


def test_X_and_y_are_not_touched(counts):
    X = counts.astype(np.float64)
    y = np.arange(1, 301)
    before = X.copy(), y.copy()
    X.flags.writeable = y.flags.writeable = False
    model = small_sr_kmeans().fit(X, y)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    np.testing.assert_array_equal(model.labels_, small_sr_kmeans().fit_predict(X))
    small_sr_kmeans().fit(X, np.array(["a"] * 300))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_column_names_and_their_order_are_enforced(counts, frame):
    names = [f"pixel{i}" for i in range(64)]
    X = pd.DataFrame(counts, columns=names)
    if frame is pl.DataFrame:
        X = pl.from_pandas(X)
    for estimator in (small_autoencoder(), small_sr_kmeans()):
        estimator.fit(X)
        assert list(estimator.feature_names_in_) == names
        with pytest.raises(ValueError, match="same order"):
            estimator.transform(X[names[::-1]])
    # The network behind the clusterer knows the names too, and does not warn about them.
    np.testing.assert_array_equal(estimator.autoencoder_.transform(X), estimator.transform(X))


@pytest.mark.parametrize("fit_on", ["flat", "images"])
def test_images_and_rows_interchange(small_images, fit_on):
    X, _ = small_images
    flat = X.reshape(len(X), -1)
    autoencoder = small_autoencoder(image_shape=(1, 8, 8))
    model = small_sr_kmeans(autoencoder).fit(flat if fit_on == "flat" else X)
    assert model.n_features_in_ == 64
    assert model.autoencoder_.image_shape_ == (1, 8, 8)
    for form in (flat, X, X[:, None], X[..., None]):
        np.testing.assert_array_equal(model.predict(form), model.labels_)
    assert model.inverse_transform(model.transform(X)).shape == flat.shape


def test_auto_is_convolutional_for_images_only(small_images):
    X, _ = small_images
    convolutions = {
        "images": Autoencoder(max_epochs=1).fit(X),
        "rows": Autoencoder(max_epochs=1).fit(X.reshape(len(X), -1)),
        "mlp": Autoencoder(max_epochs=1, module="mlp").fit(X),
    }
    has_convolution = {
        name: any(isinstance(m, torch.nn.Conv2d) for m in fitted.module_.modules())
        for name, fitted in convolutions.items()
    }
    assert has_convolution == {"images": True, "rows": False, "mlp": False}


def test_channels_first_and_last_are_told_apart():
    X = np.random.default_rng(0).integers(0, 255, (40, 3, 6, 5), dtype=np.uint8)
    model = small_sr_kmeans(small_autoencoder(image_shape=(3, 6, 5)))
    first = model.fit_predict(X)
    last = model.fit_predict(X.transpose(0, 2, 3, 1))
    flat = model.fit_predict(X.reshape(40, -1))
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(first, flat)


def test_images_go_into_a_network_fitted_on_their_rows(small_images):
    X, _ = small_images
    model = small_sr_kmeans().fit(X.reshape(len(X), -1))
    np.testing.assert_array_equal(model.predict(X), model.labels_)


@pytest.mark.parametrize(
    ("X", "image_shape", "message"),
    [
        (np.zeros((9, 2, 3, 4)), None, "image_shape"),
        (np.zeros((9, 4, 4, 4)), (4, 4, 4), "both"),
        (np.zeros((9, 2, 3, 4)), (4, 3, 2), "neither"),
        (np.zeros((9, 5, 4)), (1, 4, 5), "channels, height, width"),
        (np.zeros((9, 5)), (1, 2, 3), "makes 6 features, but X has 5"),
        (np.zeros((9, 6)), (2, 3), "three positive integers"),
        (np.zeros((9, 6)), (1, 0, 6), "three positive integers"),
        (np.zeros((9, 6)), (1.0, 2.0, 3.0), "three positive integers"),
    ],
)
def test_image_shapes_that_do_not_fit(no_training, X, image_shape, message):
    autoencoder = Autoencoder(image_shape=image_shape)
    for estimator in (autoencoder, SRKMeans(2, autoencoder=autoencoder)):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 2.5}, "n_clusters"),
        ({"n_clusters": 301}, "n_samples=300 should be >= n_clusters=301"),
        ({"lam": 0}, "lam"),
        ({"lam": -1.0}, "lam"),
        ({"lam": np.nan}, "lam"),
        ({"tol": -1e-3}, "tol"),
        ({"lr": 0}, "lr"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"max_epochs": "many"}, "max_epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"n_init": 0}, "n_init"),
        ({"device": "abacus"}, "device='abacus' is not known"),
        ({"device": "meta"}, "device='meta' is not supported"),
        ({"optimizer": "Adamant"}, "optimizer='Adamant'"),
        ({"optimizer": "LBFGS"}, "optimizer='LBFGS'"),
        ({"init": "random"}, "init"),
        ({"init": np.zeros(7)}, "labels must have shape"),
        ({"init": np.zeros(300)}, "1 distinct labels, but n_clusters=3"),
        ({"autoencoder": KMeans()}, "autoencoder"),
        ({"autoencoder": FrozenEstimator(KMeans())}, "must freeze an Autoencoder"),
        ({"autoencoder": FrozenEstimator(Autoencoder())}, "not fitted"),
        ({"autoencoder": Autoencoder(embedding_activation="identity")}, "bounded"),
        ({"autoencoder": Autoencoder(noise=1.0)}, "noise"),
        ({"autoencoder": Autoencoder(n_components=0)}, "n_components"),
        ({"autoencoder": Autoencoder(module="conv")}, "needs images"),
        ({"autoencoder": Autoencoder(module="transformer")}, "module"),
        ({"autoencoder": Autoencoder(hidden_layer_sizes=(8, 0))}, "hidden_layer_sizes"),
        ({"autoencoder": Autoencoder(hidden_layer_sizes="wide")}, "hidden_layer_sizes"),
        ({"autoencoder": Autoencoder(image_shape=(1, 8, 8), conv_maps=(5,))}, "per convolution"),
        ({"autoencoder": Autoencoder(optimizer="Adamant")}, "Adamant"),
        ({"autoencoder": Autoencoder(device="abacus")}, "abacus"),
    ],
)
def test_unfit_parameters_are_refused_before_training(no_training, counts, parameters, message):
    model = SRKMeans(**{"n_clusters": 3, **parameters})
    with pytest.raises((ValueError, NotFittedError), match=message):
        model.fit(counts)
    with pytest.raises(NotFittedError):
        model.predict(counts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_asked_for_but_absent(no_training, counts):
    for estimator in (SRKMeans(3, device="cuda"), Autoencoder(device="cuda:1")):
        with pytest.raises(ValueError, match="finds no such device"):
            estimator.fit(counts)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X: np.where(X == X.max(), np.nan, X), "NaN"),
        (lambda X: np.where(X == X.max(), np.inf, X), "infinity"),
        (lambda X: X.astype(complex), "Complex"),
        (lambda X: X.astype(str).astype(object) + "x", "could not convert|numeric"),
        (lambda X: X[:, 0], "1D array"),
        (lambda X: X[:0], "0 sample"),
    ],
)
def test_unfit_data_is_refused_before_training(no_training, counts, spoil, message):
    for estimator in (Autoencoder(), SRKMeans(3)):
        with pytest.raises(ValueError, match=message):
            estimator.fit(spoil(counts.astype(float)))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("container", ["matrix", "array"])
def test_sparse_data_gives_the_same_bits(counts, kind, container):
    X = counts.astype(np.float64)
    expected = small_sr_kmeans().fit(X)
    sparse = getattr(scipy.sparse, f"{kind}_{container}")(X)
    before = sparse.toarray()
    model = small_sr_kmeans().fit(sparse)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(model.predict(sparse), model.predict(X))
    np.testing.assert_array_equal(model.transform(sparse), model.transform(X))
    assert model.score(sparse) == model.score(X)
    np.testing.assert_array_equal(sparse.toarray(), before)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.uint8, bool])
@pytest.mark.parametrize("method", METHODS)
def test_sparse_data_of_any_type_and_method(counts, method, dtype):
    X = counts.astype(dtype)
    expected = small(method).fit(X)
    model = small(method).fit(scipy.sparse.csr_matrix(X))
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    assert model.transform(scipy.sparse.csr_matrix(X)).dtype == expected.transform(X).dtype


def test_sparse_data_with_entries_stored_in_pieces(counts):
    """An entry may be stored as several that add up; so X is not to be changed in place."""
    X = counts.astype(np.float64)
    whole = scipy.sparse.csr_matrix(X)
    twice = scipy.sparse.csr_matrix(
        (
            np.repeat(whole.data / 2, 2),
            np.repeat(whole.indices, 2),
            2 * whole.indptr,
        ),
        shape=X.shape,
    )
    model = small_sr_kmeans().fit(twice)
    np.testing.assert_array_equal(model.labels_, small_sr_kmeans().fit(X).labels_)
    assert twice.nnz == 2 * whole.nnz


def test_sparse_data_is_never_dense_as_a_whole(monkeypatch):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(400, 30_000, density=0.002, format="csr", random_state=rng)
    n_rows = []
    toarray = scipy.sparse.csr_matrix.toarray

    def recorded(self, *args, **kwargs):
        n_rows.append(self.shape[0])
        return toarray(self, *args, **kwargs)

    monkeypatch.setattr(scipy.sparse.csr_matrix, "toarray", recorded)
    autoencoder = small_autoencoder(max_epochs=1)
    model = small_sr_kmeans(autoencoder, max_epochs=1).fit(scipy.sparse.csr_matrix(X))
    model.predict(scipy.sparse.csr_matrix(X))
    # A batch is a tenth of the data; passes over all of it take 2 MB of float64 at a time.
    assert max(n_rows) <= 40
    assert len(n_rows) > 30


def test_sparse_data_through_frozen_network_scan_and_grid(counts):
    X = scipy.sparse.csr_matrix(counts.astype(np.float32))
    frozen = FrozenEstimator(small_autoencoder().fit(X))
    labels = small_sr_kmeans(frozen).fit_predict(X)
    np.testing.assert_array_equal(labels, small_sr_kmeans().fit_predict(X))
    dense = scan_n_clusters(small_sr_kmeans(), X.toarray(), [3, 4], scoring=neighbor_agreement)
    scan = scan_n_clusters(small_sr_kmeans(), X, [3, 4], scoring=neighbor_agreement)
    np.testing.assert_allclose(scan.score, dense.score, atol=0.01)
    assert input_silhouette(small_sr_kmeans().fit(X), X) == pytest.approx(
        input_silhouette(small_sr_kmeans().fit(X), X.toarray()), abs=1e-5
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_unfit_sparse_data_is_refused_before_training(no_training, counts, value):
    X = scipy.sparse.csr_matrix(counts.astype(float))
    X.data[3] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        SRKMeans(3).fit(X)


def test_few_distinct_sparse_rows_warn():
    X = scipy.sparse.csr_matrix(np.repeat(np.eye(4), 10, axis=0))
    with pytest.warns(ConvergenceWarning, match="4 distinct rows"):
        small_sr_kmeans(n_clusters=6).fit(X)


def test_news_as_tf_idf(data_home):
    """Real text: sparse rows train, and beat chance."""
    with np.load(data_home / "news20_tfidf2000.npz") as file:
        parts = (file["data"], file["indices"].astype(np.int32), file["indptr"])
        X, y = scipy.sparse.csr_matrix(parts, shape=file["shape"]), file["y"]
    X, y = X[:2000], y[:2000]
    autoencoder = Autoencoder(hidden_layer_sizes=(64,), max_epochs=10)
    labels = SRKMeans(20, autoencoder=autoencoder, max_epochs=8, random_state=0).fit_predict(X)
    assert adjusted_rand_score(y, labels) > 0.02


def test_more_clusters_than_distinct_rows_warns_and_fits():
    X = np.repeat(np.eye(4), 10, axis=0)
    with pytest.warns(ConvergenceWarning, match="4 distinct rows"):
        model = small_sr_kmeans(n_clusters=6).fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert np.isfinite(model.cluster_centers_).all()
    assert len(np.unique(model.labels_)) <= 4


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((30, 4)),
        np.full((30, 4), 1e6),
        np.tile([1.0, 50.0, -3.0, 0.0], (30, 1)),
        np.full((30, 4), 0.1, dtype=np.float32),
    ],
    ids=["zero", "large", "constant rows", "float32"],
)
def test_constant_data(X):
    model = small_sr_kmeans(n_clusters=1).fit(X)
    assert set(model.labels_) == {0}
    assert np.isfinite(model.score(X))
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(X)), X, atol=3 * np.abs(X - X.mean()).max() + 1
    )


@pytest.mark.parametrize("unit", [1e-200, 1e-30, 1e-3, 1e5, 1e30, 1e150])
def test_the_unit_of_the_data_does_not_matter(blobs, unit):
    X, _ = blobs
    expected = small_sr_kmeans().fit(X)
    model = small_sr_kmeans().fit(X * unit)
    # A power of ten is not exact in binary, so the batches agree but for the last bits.
    assert np.mean(model.labels_ != expected.labels_) <= 0.01
    np.testing.assert_allclose(model.autoencoder_.scale_, expected.autoencoder_.scale_ * unit)


def test_far_away_data_is_centred_exactly(blobs):
    X, _ = blobs
    expected = small_sr_kmeans().fit(X)
    model = small_sr_kmeans().fit(X + 2.0**30)
    assert np.mean(model.labels_ != expected.labels_) <= 0.01


def test_inverse_transform_undoes_the_scaling(blobs):
    X, _ = blobs
    autoencoder = Autoencoder(8, hidden_layer_sizes=(64,), max_epochs=300, random_state=0)
    X = 1000 + 50 * X
    autoencoder.fit(X)
    error = autoencoder.inverse_transform(autoencoder.transform(X)) - X
    assert np.square(error).mean() < 0.1 * X.var()
    np.testing.assert_allclose(
        np.square(error).mean() / X.var(), autoencoder.reconstruction_error_, rtol=1e-6
    )
    with pytest.raises(ValueError, match="Z has 3 columns, but the embedding has 8"):
        autoencoder.inverse_transform(np.zeros((2, 3)))


@pytest.mark.parametrize(
    "init",
    [
        KMeans(n_clusters=2, n_init=1),
        GaussianMixture(),
        make_pipeline(StandardScaler(), KMeans(n_init=1)),
    ],
    ids=lambda init: type(init).__name__,
)
def test_init_by_another_clusterer(blobs, init):
    X, _ = blobs
    model = small_sr_kmeans(init=init).fit(X)
    np.testing.assert_array_equal(model.labels_, small_sr_kmeans(init=init).fit_predict(X))
    assert len(np.unique(model.labels_)) == 3
    assert init.get_params().get("random_state") is None


def test_init_by_labels_keeps_their_numbering(blobs):
    X, y = blobs
    autoencoder = FrozenEstimator(Autoencoder(4, random_state=0).fit(X))
    model = SRKMeans(3, autoencoder=autoencoder, init=y, random_state=0).fit(X)
    np.testing.assert_array_equal(model.labels_, y)
    named = np.array(["b", "c", "a"])[y]
    model.set_params(init=named).fit(X)
    np.testing.assert_array_equal(np.array(["a", "b", "c"])[model.labels_], named)


def test_init_that_finds_another_number_of_clusters(blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match="found 0 clusters, but n_clusters=3"):
        small_sr_kmeans(init=DBSCAN(eps=1e-9)).fit(X)


def test_noise_of_the_initial_clustering_joins_the_nearest_cluster(blobs):
    X, _ = blobs

    class Noisy(KMeans):
        def fit_predict(self, Z, y=None):
            labels = super().fit_predict(Z)
            labels[::10] = -1
            return labels

    plain = small_sr_kmeans(init=KMeans(n_init=1)).fit(X)
    noisy = small_sr_kmeans(init=Noisy(n_init=1)).fit(X)
    assert noisy.labels_.min() == 0
    assert np.mean(plain.labels_ == noisy.labels_) > 0.9


def test_graph_of_copies_and_of_few_samples():
    """Where all neighbours of a sample are copies of it, links must not vanish."""
    rng = np.random.default_rng(0)
    X = np.concatenate([np.repeat(rng.normal(size=(5, 4)), 119, axis=0), rng.normal(size=(5, 4))])
    model = small_sr_kmeans(n_clusters=5, init="graph").fit(X)
    assert np.isfinite(model.cluster_centers_).all()
    for n in (1, 2, 3, 40):
        few = small_sr_kmeans(n_clusters=1, init="graph").fit(X[-n:])
        assert few.labels_.tolist() == [0] * min(n, len(X))


def test_graph_finds_digits_better_than_k_means(digits):
    X, y = digits
    links = initial.graph_of(X, 10, 0)
    scores = {
        init: adjusted_rand_score(y, initial.initial_labels(X, links, init, 10, 10, 0))
        for init in ("graph", "k-means")
    }
    assert scores["graph"] > scores["k-means"] + 0.05


def test_graph_of_many_samples_labels_all_of_them(monkeypatch):
    X, y = make_blobs(900, 3, centers=4, cluster_std=0.3, random_state=0)
    whole = graph.graph_clustering(X, 4, 3, 0)
    monkeypatch.setattr(graph, "_GRAPH_SAMPLES", 300)
    part = graph.graph_clustering(X, 4, 3, 0)
    for labels in (whole, part):
        assert adjusted_rand_score(y, labels) == 1


@pytest.mark.parametrize("number", [np.int64, np.int32])
def test_numpy_integers_are_integers(blobs, number):
    X, _ = blobs
    autoencoder = Autoencoder(
        number(2), max_epochs=number(2), batch_size=number(16), image_shape=np.array([1, 2, 4])
    )
    model = SRKMeans(number(3), autoencoder=autoencoder, max_epochs=number(2), n_init=number(1))
    assert model.fit(X).n_iter_ <= 2
