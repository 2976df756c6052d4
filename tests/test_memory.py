"""Pretraining that is kept on disk."""

import threading
import time
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from skdeepcluster import Autoencoder, DeepKMeans, SRKMeans, scan_n_clusters
from skdeepcluster._memory import remembered

from .conftest import METHODS, small, small_autoencoder
from .test_estimators import PlainModule


@pytest.fixture
def pretrainings(monkeypatch):
    """A list that grows with every pretraining in this process."""
    counted = []
    train = Autoencoder._train_until_alive

    def recorded(self, rows):
        counted.append(len(rows))
        train(self, rows)

    monkeypatch.setattr(Autoencoder, "_train_until_alive", recorded)
    return counted


def entries(folder):
    """Kept results in a cache."""
    return list(Path(folder).rglob("output.pkl"))


@pytest.mark.parametrize("method", METHODS)
def test_the_second_fit_is_the_first_bit_by_bit(blobs, tmp_path, pretrainings, method):
    X, _ = blobs
    plain = small(method, small_autoencoder(random_state=None)).fit(X)
    first, second = (
        small(method, small_autoencoder(random_state=None), memory=str(tmp_path)).fit(X)
        for _ in range(2)
    )
    assert len(pretrainings) == 2
    for model in (first, second):
        np.testing.assert_array_equal(model.transform(X), plain.transform(X))
        np.testing.assert_array_equal(model.cluster_centers_, plain.cluster_centers_)
        assert [row["train_loss"] for row in model.history_] == [
            row["train_loss"] for row in plain.history_
        ]
    assert second.autoencoder_.n_iter_ == plain.autoencoder_.n_iter_


def test_all_methods_share_the_network(blobs, tmp_path, pretrainings):
    for method in METHODS:
        small(method, memory=str(tmp_path)).fit(blobs[0])
    small_autoencoder(memory=joblib.Memory(str(tmp_path), verbose=0)).fit(blobs[0])
    assert len(pretrainings) == 1


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_grid_over_the_loss_pretrains_once_per_fold(blobs, tmp_path, pretrainings, n_jobs):
    """Nine candidates on two folds, and the refit: three sets of rows."""
    grid = {"lam": [0.1, 1.0, 10.0], "alpha": [1.0, 10.0, 100.0]}
    model = small(DeepKMeans, memory=str(tmp_path))
    search = GridSearchCV(model, grid, cv=2, n_jobs=n_jobs).fit(blobs[0])
    assert len(entries(tmp_path)) == 3
    assert len(pretrainings) == (3 if n_jobs == 1 else 1)
    without = GridSearchCV(small(DeepKMeans), grid, cv=2).fit(blobs[0])
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], without.cv_results_["mean_test_score"], rtol=1e-6
    )


def test_what_the_network_depends_on_is_in_the_key(blobs, tmp_path, pretrainings):
    X, _ = blobs
    base = {"memory": str(tmp_path)}
    small_autoencoder(**base).fit(X)
    for n_trained, parameters in enumerate(
        [
            {"n_components": 3},
            {"hidden_layer_sizes": (17,)},
            {"embedding_activation": "identity"},
            {"noise": 0.2},
            {"max_epochs": 6},
            {"batch_size": 40},
            {"lr": 3e-3},
            {"augment": "shift-rotate", "image_shape": (1, 2, 4)},
            {"lr_schedule": "constant"},
            {"optimizer": "AdamW"},
            {"optimizer": torch.optim.AdamW},
            {"optimizer": partial(torch.optim.AdamW, weight_decay=0.1)},
            {"optimizer": partial(torch.optim.AdamW, weight_decay=0.2)},
            {"random_state": 1},
            {"image_shape": (1, 2, 4)},
            {"image_shape": (2, 2, 2)},
        ],
        start=2,
    ):
        small_autoencoder(**base, **parameters).fit(X)
        assert len(pretrainings) == n_trained, parameters
    small_autoencoder(**base).fit(X + 1)
    small_autoencoder(**base).fit(X.astype(np.float32))
    assert len(pretrainings) == n_trained + 2
    # And what it does not depend on is not.
    for parameters in ({"verbose": 0}, {"device": "cpu"}, {"random_state": np.int64(0)}):
        small_autoencoder(**base, **parameters).fit(X.copy())
    assert len(pretrainings) == n_trained + 2


class Nothing(Callback):
    pass


@pytest.mark.parametrize(
    "parameters",
    [
        {"random_state": None},
        {"random_state": np.random.RandomState(0)},
        {"callbacks": [Nothing()]},
        {"module": PlainModule},
        {"module": PlainModule((8,), 2)},
        {"optimizer": partial(torch.optim.Adam, betas=torch.tensor([0.9, 0.999]).tolist())},
    ],
)
def test_what_has_no_plain_key_is_not_kept(blobs, tmp_path, parameters):
    model = small_autoencoder(memory=str(tmp_path), **parameters).fit(blobs[0])
    assert entries(tmp_path) == []
    assert np.isfinite(model.transform(blobs[0])).all()


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_a_seed_that_nobody_has_again_is_not_kept(blobs, tmp_path, random_state):
    autoencoder = small_autoencoder(random_state=None)
    small(SRKMeans, autoencoder, random_state=random_state, memory=str(tmp_path)).fit(blobs[0])
    assert entries(tmp_path) == []


def test_scan_uses_the_cache(blobs, tmp_path, pretrainings):
    for _ in range(2):
        scan_n_clusters(small(SRKMeans, memory=str(tmp_path)), blobs[0], [2, 3])
    assert len(pretrainings) == 1


def test_a_broken_entry_is_made_again_with_a_warning(blobs, tmp_path, pretrainings, caplog):
    X, _ = blobs
    expected = small_autoencoder(memory=str(tmp_path)).fit(X).transform(X)
    for path in entries(tmp_path):
        path.write_bytes(b"broken")
    for _ in range(2):
        model = small_autoencoder(memory=str(tmp_path)).fit(X)
        np.testing.assert_array_equal(model.transform(X), expected)
    assert len(pretrainings) == 2
    assert len(caplog.records) == 1
    assert "Exception while loading results" in caplog.text


def test_two_that_want_the_same_at_a_time_compute_it_once(tmp_path):
    computed, results = [], []

    def compute():
        computed.append(1)
        time.sleep(0.3)
        return {"weights": np.arange(3)}

    def want():
        results.append(remembered(str(tmp_path), "key", compute))

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(computed) == 1
    assert all(np.array_equal(result["weights"], np.arange(3)) for result in results)


def test_a_failed_computation_keeps_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        remembered(str(tmp_path), "key", lambda: 1 / 0)
    assert remembered(str(tmp_path), "key", lambda: 5) == 5
