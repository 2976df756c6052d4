"""Peak memory of fit and predict beyond what is there before, each in a process of its own.

    python benchmarks/memory.py --data-home FOLDER [--cases predict fit memmap sparse]

Anonymous memory (RssAnon of /proc/self/status, so Linux only) is sampled every 10 ms: what the
process itself holds, without pages of files that the system may drop. "Before" is after importing
the package and making the data. The memmap of 1.9 million rows (6 GB) is made up in a temporary
file. Results go to ``results/memory.json`` and ``docs/memory.csv``.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sklearn.frozen import FrozenEstimator

from skdeepcluster import Autoencoder, SRKMeans

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "memory.json"
TABLE = HERE.parent / "docs" / "memory.csv"
CASES = ("predict", "fit", "memmap", "sparse")


class Peak(threading.Thread):
    """Largest anonymous memory while it runs, in MB above the start."""

    def __init__(self):
        super().__init__(daemon=True)
        self.start_mb = self.peak_mb = self.now()
        self.done = threading.Event()

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def run(self):
        while not self.done.wait(0.01):
            self.peak_mb = max(self.peak_mb, self.now())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()


def images(data_home):
    with np.load(data_home / "mnist.npz") as file:
        return file["X"].reshape(70_000, 784)


def small_autoencoder(**parameters):
    return Autoencoder(hidden_layer_sizes=(64,), max_epochs=1, random_state=0, **parameters)


def predict(data_home, folder):
    """predict, 70,000 x 784 float32, the default network"""
    X = images(data_home)
    autoencoder = Autoencoder(max_epochs=1, random_state=0).fit(X[:2000])
    model = SRKMeans(10, autoencoder=FrozenEstimator(autoencoder), max_epochs=1, random_state=0)
    model.fit(X[:2000])
    X = X.astype(np.float32)
    return lambda: model.predict(X)


def fit(data_home, folder):
    """fit, 70,000 x 784 uint8, the default network, 1 epoch a phase"""
    X = images(data_home)
    autoencoder = Autoencoder(max_epochs=1, random_state=0)
    model = SRKMeans(10, autoencoder=autoencoder, max_epochs=2, random_state=0)
    return lambda: model.fit(X)


def memmap(data_home, folder):
    """fit, memmap of 1,900,000 x 784 float32 (6 GB), hidden (64,), 1 epoch a phase"""
    images_ = images(data_home).astype(np.float32)
    X = np.memmap(folder / "X.dat", dtype=np.float32, mode="w+", shape=(1_900_000, 784))
    rng = np.random.default_rng(0)
    for start in range(0, len(X), 10_000):
        block = images_[rng.integers(len(images_), size=10_000)]
        X[start : start + 10_000] = block + rng.normal(size=block.shape).astype(np.float32)
    X.flush()
    del images_
    X = np.memmap(folder / "X.dat", dtype=np.float32, mode="r", shape=(1_900_000, 784))
    model = SRKMeans(10, autoencoder=small_autoencoder(), max_epochs=1, random_state=0)
    return lambda: model.fit(X)


def sparse(data_home, folder):
    """fit, news20 tf-idf CSR, the default network, 1 epoch a phase"""
    X = sparse_rows(data_home)
    autoencoder = Autoencoder(max_epochs=1, random_state=0)
    model = SRKMeans(20, autoencoder=autoencoder, max_epochs=2, random_state=0)
    return lambda: model.fit(X)


def sparse_rows(data_home):
    import scipy.sparse

    with np.load(data_home / "news20_tfidf2000.npz") as file:
        return scipy.sparse.csr_matrix(
            tuple(file[part] for part in ("data", "indices", "indptr")),
            shape=tuple(file["shape"]),
        )


def measure(case, data_home):
    """Print a record of one case."""
    with tempfile.TemporaryDirectory() as folder:
        function = globals()[case](data_home, Path(folder))
        start = time.perf_counter()
        with Peak() as peak:
            function()
        print(
            json.dumps(
                {
                    "case": globals()[case].__doc__,
                    "extra_mb": round(peak.peak_mb - peak.start_mb),
                    "before_mb": round(peak.start_mb),
                    "seconds": round(time.perf_counter() - start, 1),
                }
            )
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--data-home", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--measure", choices=CASES, help="one case, in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.data_home)
        return

    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in arguments.cases:
        command = [sys.executable, __file__, "--measure", case, "--data-home"]
        run = subprocess.run([*command, arguments.data_home], stdout=subprocess.PIPE, check=True)
        records[case] = json.loads(run.stdout.splitlines()[-1])
        print(records[case], flush=True)
        RESULTS.write_text(json.dumps(records, indent=1) + "\n")
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "MB beyond the start", "MB at the start", "seconds"])
        rows = [records[case] for case in CASES if case in records]
        writer.writerows([r["case"], r["extra_mb"], r["before_mb"], r["seconds"]] for r in rows)


if __name__ == "__main__":
    main()
