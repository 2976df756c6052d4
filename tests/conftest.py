"""Data and small instances that the tests share."""

import os
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import load_digits, make_blobs

from skdeepcluster import DCN, DEPICT, IDEC, MIADM, Autoencoder, DeepKMeans, SRKMeans

METHODS = [SRKMeans, MIADM, DEPICT, DeepKMeans, DCN, IDEC]

# At home every run tries new examples; a submission is judged by the same ones each time.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(scope="session")
def blobs():
    """Three well separated groups in eight dimensions, float64."""
    X, y = make_blobs(120, 8, centers=3, cluster_std=0.5, random_state=0)
    return X, y


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits: (1797, 64) float64 holding integers from 0 to 16."""
    return load_digits(return_X_y=True)


@pytest.fixture(scope="session")
def small_images(digits):
    """300 digits as (n, 8, 8) uint8."""
    X, y = digits
    return X[:300].reshape(-1, 8, 8).astype(np.uint8), y[:300]


@pytest.fixture(scope="session")
def data_home():
    """Folder with the real data sets as npz; the tests that need it are skipped without."""
    folder = Path(os.environ.get("SKDEEPCLUSTER_DATA", Path(__file__).parents[2] / "shared/data"))
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}; set SKDEEPCLUSTER_DATA to a folder that has them")
    return folder


def small_autoencoder(**parameters):
    """An Autoencoder that trains in a moment."""
    defaults = {"n_components": 2, "hidden_layer_sizes": (16,), "max_epochs": 5, "random_state": 0}
    return Autoencoder(**{**defaults, **parameters})


def small(method, autoencoder=None, **parameters):
    """A clusterer that trains in a moment."""
    if autoencoder is None:
        autoencoder = small_autoencoder()
    defaults = {"n_clusters": 3, "n_init": 1, "max_epochs": 4, "random_state": 0}
    return method(autoencoder=autoencoder, **{**defaults, **parameters})


def small_sr_kmeans(autoencoder=None, **parameters):
    """An SRKMeans that trains in a moment."""
    return small(SRKMeans, autoencoder, **parameters)
