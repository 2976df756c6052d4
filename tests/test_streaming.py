"""Data larger than memory: chunks give the same results, and nothing of its size is held."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from skdeepcluster import MIADM, Autoencoder, _blocks
from skdeepcluster.assignments import covariance, label_means, mean_row
from skdeepcluster.information import kl_divergence, mutual_information
from skdeepcluster.targets import (
    dec_target,
    depict_target,
    exact_mi_adm_target,
    mi_adm_target,
)
from skdeepcluster.training import Rows, Scaling, rows

from .conftest import METHODS, small, small_autoencoder

CPU = torch.device("cpu")


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of one row or a few."""
    monkeypatch.setattr(_blocks, "_ELEMENTS", 20)


def log_posteriors(n=57, k=4):
    scores = torch.randn(n, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.log_softmax(5 * scores, dim=1)


def targets_of(log_p):
    return [
        mi_adm_target(log_p),
        exact_mi_adm_target(log_p),
        depict_target(log_p, 0.7),
        dec_target(log_p),
    ]


def test_formulas_do_not_depend_on_the_blocks(monkeypatch):
    log_p = log_posteriors()
    z = torch.randn(57, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(57) % 4

    def all_of_them():
        q = dec_target(log_p)
        return [
            *targets_of(log_p),
            mutual_information(q),
            kl_divergence(q, log_p),
            mean_row(z),
            covariance(z),
            label_means(z, labels, torch.zeros(5, 3)),
        ]

    whole = all_of_them()
    for elements in (1, 20, 100):
        monkeypatch.setattr(_blocks, "_ELEMENTS", elements)
        torch.testing.assert_close(all_of_them(), whole, rtol=1e-12, atol=1e-13)


def test_means_and_covariance_are_numpys(tiny_blocks):
    z = np.random.default_rng(0).normal(size=(57, 3)).astype(np.float32)
    labels = np.arange(57) % 4
    wide = z.astype(np.float64)
    np.testing.assert_allclose(mean_row(torch.from_numpy(z)), wide.mean(axis=0), atol=1e-15)
    expected = np.cov(wide.T, ddof=0)
    np.testing.assert_allclose(covariance(torch.from_numpy(z)), expected, atol=1e-14)
    found = label_means(torch.from_numpy(z), torch.from_numpy(labels), torch.full((5, 3), 7.0))
    expected = [wide[labels == k].mean(axis=0) for k in range(4)] + [np.full(3, 7.0)]
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_does_not_depend_on_the_blocks(method, blobs, monkeypatch):
    X, _ = blobs
    whole = small(method, max_epochs=8).fit(X)
    monkeypatch.setattr(_blocks, "_ELEMENTS", 30)
    parts = small(method, max_epochs=8).fit(X)
    np.testing.assert_array_equal(parts.labels_, whole.labels_)
    # Sums in another order differ in the last bit, which training in float32 enlarges.
    np.testing.assert_allclose(parts.cluster_centers_, whole.cluster_centers_, atol=1e-4)
    assert parts.objective_ == pytest.approx(whole.objective_, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64, bool])
def test_batches_do_not_depend_on_the_chunks(dtype, monkeypatch):
    X = np.random.default_rng(0).integers(0, 2 if dtype is bool else 100, size=(50, 7))
    X = X.astype(dtype)
    scaling = Scaling.of(X)
    index = torch.tensor([3, 49, 0, 3])
    whole = Rows(X, scaling, (7,), CPU)
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 8 * 7 * 17)
    parts = Rows(X, scaling, (7,), CPU)
    assert len(list(whole.chunks())) == 1
    assert len(list(parts.chunks())) == 3
    for precision in (torch.float32, torch.float64):
        assert torch.equal(parts.take(index, precision), whole.take(index, precision))
        assert torch.equal(
            torch.cat(list(parts.chunks(precision))), torch.cat(list(whole.chunks(precision)))
        )
    assert Scaling.of(X).mean == pytest.approx(scaling.mean, rel=1e-14)
    assert Scaling.of(X).deviation == pytest.approx(scaling.deviation, rel=1e-14)


def test_measuring_in_chunks_keeps_the_digits_of_a_small_deviation(monkeypatch):
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 8 * 3 * 10)
    noise = np.random.default_rng(0).normal(size=(500, 3))
    X = 1e6 + np.linspace(0, 1, 500)[:, None] + noise
    scaling = Scaling.of(X)
    assert scaling.mean == pytest.approx(np.mean(X - 1e6) + 1e6, rel=1e-15)
    assert scaling.deviation == pytest.approx(np.std(X - 1e6), rel=1e-9)
    extreme = Scaling.of(X * 1e295)
    assert extreme.deviation == pytest.approx(np.std(X - 1e6) * 1e295, rel=1e-9)


def test_memmaps_give_what_arrays_give(blobs, tmp_path):
    X = blobs[0].astype(np.float32)
    X.tofile(tmp_path / "X")
    mapped = np.memmap(tmp_path / "X", dtype=np.float32, mode="r", shape=X.shape)
    a, b = (small(MIADM).fit(data) for data in (X, mapped))
    np.testing.assert_array_equal(a.predict_proba(X), b.predict_proba(mapped))
    np.testing.assert_array_equal(a.labels_, b.labels_)


def test_an_epochs_losses_are_averaged_over_samples(blobs):
    X, _ = blobs
    autoencoder = small_autoencoder(noise=0, lr=1e-12, max_epochs=1, batch_size=50).fit(X)
    # With hardly a step taken, the epoch's loss is that of all samples, batches of 50, 50, 20.
    assert autoencoder.history_[0]["train_loss"] == pytest.approx(-autoencoder.score(X), rel=1e-5)


CODE = """
    import sys, threading, time
    import numpy as np
    from skdeepcluster import Autoencoder, SRKMeans

    def anonymous():
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def model():
        autoencoder = Autoencoder(4, hidden_layer_sizes=(16,), max_epochs=1, random_state=0)
        return SRKMeans(3, autoencoder=autoencoder, max_epochs=1, batch_size=1000, random_state=0)

    X = np.memmap(sys.argv[1], dtype=np.float32, mode="r", shape=(100_000, 500))
    model().fit(X[:1000]).predict(X[:1000])  # what is imported on the way
    start = peak = anonymous()
    done = threading.Event()

    def watch():
        global peak
        while not done.wait(0.005):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    labels = model().fit(X).predict(X)
    done.set()
    thread.join()
    print(peak - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_memmap_of_200_mb_is_never_held(tmp_path):
    path = tmp_path / "X"
    with path.open("wb") as file:
        rng = np.random.default_rng(0)
        for group in range(10):
            file.write(rng.normal(group % 3, 1, size=(10_000, 500)).astype(np.float32).tobytes())
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(run.stdout.split()[-1]) < 100


def test_the_decoder_of_many_samples_works_in_chunks(blobs):
    X, _ = blobs
    autoencoder = Autoencoder(2, hidden_layer_sizes=(8,), max_epochs=1, random_state=0).fit(X)
    Z = np.random.default_rng(0).normal(size=(50_000, 2))
    some = [0, 17, 40_000, 49_999]
    np.testing.assert_allclose(
        autoencoder.inverse_transform(Z)[some], autoencoder.inverse_transform(Z[some]), rtol=1e-12
    )


def test_float32_is_measured_in_float64():
    # Under numpy 1, float32 divided by a float64 number stayed float32.
    X = (1e4 + np.random.RandomState(0).rand(500, 8)).astype(np.float32)
    scaling = Scaling.of(X)
    assert scaling.deviation == pytest.approx(X.std(dtype=np.float64), rel=1e-12)
    assert scaling.mean == pytest.approx(X.mean(dtype=np.float64), rel=1e-14)


def test_very_wide_data_is_taken_by_some_rows_at_a_time():
    X = np.zeros((40, 2**18))
    rows = Rows(X, Scaling(0.0, 1.0), (2**18,), torch.device("cpu"))
    assert [len(chunk) for chunk in rows.chunks()] == [16, 16, 8]
