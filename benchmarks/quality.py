"""Clustering scores of the default calls, beside k-means, on real data.

    python benchmarks/quality.py --data digits usps pendigits --seeds 5 --data-home FOLDER
    python benchmarks/quality.py --data usps --methods SRKMeans MIADM --cache FOLDER
    python benchmarks/quality.py --data usps --precision bfloat16
    python benchmarks/quality.py --report

Per data set and seed one Autoencoder is pretrained with its defaults; "AE+KMeans" and all methods
start from it, but for "DKM_a", the annealed Deep k-Means, which trains from scratch. "MI-D" is
MIADM(solver="direct"), "DEPICT-dec" has the official code's target instead of the paper's.
Labels are for the scores alone. Every run is appended as a line to ``results/quality.jsonl``; runs
that are there already (same data, network, precision, method, seed and version) are skipped.
Seconds include the pretraining where there is one. ``--cache`` keeps the pretrained networks for
another time.
``--data-home`` has the data sets as ``NAME.npz`` with X and y; digits come with scikit-learn.
"""

import argparse
import json
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import scipy.sparse
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from skdeepcluster import (
    DCN,
    DEPICT,
    IDEC,
    MIADM,
    Autoencoder,
    DeepKMeans,
    SRKMeans,
    __version__,
    clustering_accuracy,
)

RESULTS = Path(__file__).parent / "results" / "quality.jsonl"


def load(name, folder):
    """Flat rows in their own type, classes, and the images' shape or None."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X, y, (1, 8, 8)
    with np.load(folder / f"{name.removesuffix('-test')}.npz") as file:
        y = file["y"]
        if "indptr" in file:
            parts = file["data"], file["indices"].astype(np.int32), file["indptr"]
            return scipy.sparse.csr_matrix(parts, shape=tuple(file["shape"])), y, None
        X = file["X"]
    if name == "mnist-test":
        X, y = X[-10_000:], y[-10_000:]
    image_shape = (1, *X.shape[1:]) if X.ndim == 3 else None
    return np.ascontiguousarray(X.reshape(len(X), -1)), y, image_shape


def timed(function):
    """What a function returns, and its seconds."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


METHODS = {
    "SRKMeans": SRKMeans,
    "MIADM": MIADM,
    "MI-D": partial(MIADM, solver="direct"),
    "DEPICT": DEPICT,
    "DEPICT-dec": partial(DEPICT, target="dec"),
    "DKM_p": DeepKMeans,
    "DKM_a": partial(DeepKMeans, alpha="anneal"),
    "DCN": DCN,
    "IDEC": IDEC,
}


def pretrained(X, image_shape, seed, precision, path):
    """A fitted Autoencoder and its seconds, from the cache if they are there."""
    if path is not None and path.exists():
        return joblib.load(path)
    autoencoder = Autoencoder(image_shape=image_shape, precision=precision, random_state=seed)
    autoencoder, seconds = timed(lambda: autoencoder.fit(X))
    if path is not None:
        joblib.dump((autoencoder, seconds), path)
    return autoencoder, seconds


def error_share(autoencoder, X):
    """Squared error of the reconstruction; 1 is what the mean image reaches."""
    errors = [
        np.square(autoencoder.inverse_transform(autoencoder.transform(part)) - part).sum()
        for part in np.array_split(X, 1 + len(X) // 5000)
    ]
    return float(sum(errors) / (X.var(axis=0, dtype=np.float64).sum() * len(X)))


def run(X, y, image_shape, seed, methods, precision, path):
    """Fit methods with one seed; yields a record for each."""
    k = len(np.unique(y))

    def record(method, labels, seconds, **more):
        sizes = np.bincount(labels, minlength=k)
        return {
            "method": method,
            "acc": clustering_accuracy(y, labels),
            "nmi": normalized_mutual_info_score(y, labels),
            "nmi_geometric": normalized_mutual_info_score(y, labels, average_method="geometric"),
            "ari": adjusted_rand_score(y, labels),
            "seconds": seconds,
            "smallest_cluster": int(sizes.min()),
            # A cluster of less than a hundredth of the mean size has been lost.
            "collapsed": bool(sizes.min() < 0.01 * len(X) / k),
            **more,
        }

    k_means = KMeans(k, n_init=10, random_state=seed)
    autoencoder, pretraining = pretrained(X, image_shape, seed, precision, path)
    for method in methods:
        if method == "KMeans":
            yield record(method, *timed(lambda: k_means.fit_predict(X)))
        elif method == "AE+KMeans":
            labels, seconds = timed(lambda: k_means.fit_predict(autoencoder.transform(X)))
            share = error_share(autoencoder, X)
            yield record(method, labels, pretraining + seconds, error_share=share)
        else:
            scratch = method == "DKM_a"
            architecture = Autoencoder(n_components=10, image_shape=image_shape)
            network = architecture if scratch else FrozenEstimator(autoencoder)
            model = METHODS[method](k, autoencoder=network, precision=precision, random_state=seed)
            labels, seconds = timed(partial(model.fit_predict, X))
            seconds += 0 if scratch else pretraining
            why = {"epochs": model.n_iter_, "stop_reason": model.stop_reason_}
            yield record(method, labels, seconds, **why)


def network_of(record):
    """The network, and the precision where it is not the default."""
    precision = record.get("precision", "float32")
    return record["network"] + ("" if precision == "float32" else f" {precision}")


def report(records):
    """Table for the guide: mean and standard deviation over the seeds."""
    groups = defaultdict(list)
    for r in records:
        groups[r["data"], network_of(r), r["method"]].append(r)
    print(".. csv-table::")
    print("   :header: data, network, method, ACC, NMI, ARI, seconds, seeds, collapsed\n")
    order = ["KMeans", "AE+KMeans", *METHODS]
    for data, network, method in sorted(groups, key=lambda g: (g[0], g[1], order.index(g[2]))):
        runs = groups[data, network, method]
        cells = [data, "" if method == "KMeans" else network, method]
        for key in ("acc", "nmi", "ari", "seconds"):
            values = [r[key] for r in runs]
            digits = 1 if key == "seconds" else 3
            cells.append(f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}")
        cells += [str(len(runs)), str(sum(r["collapsed"] for r in runs))]
        print("   " + ", ".join(cells))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--network", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=["KMeans", "AE+KMeans", *METHODS])
    parser.add_argument("--data-home", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()

    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    records = [json.loads(line) for line in lines]
    done = {(r["data"], network_of(r), r["method"], r["seed"], r["version"]) for r in records}
    network, precision = arguments.network, arguments.precision
    for data in [] if arguments.report else arguments.data:
        X, y, image_shape = load(data, arguments.data_home)
        shape = image_shape if network == "conv" else None
        for seed in range(arguments.seeds):
            key = {"data": data, "network": network, "seed": seed, "version": __version__}
            key |= {"precision": precision}
            methods = [
                method
                for method in arguments.methods
                if (data, network_of(key), method, seed, __version__) not in done
            ]
            if not methods:
                continue
            path = arguments.cache and (
                arguments.cache / f"{data}-{network_of(key)}-{seed}-{__version__}.joblib"
            )
            for result in run(X, y, shape, seed, methods, precision, path):
                records.append({**key, "augment": False, **result})
                print(json.dumps(records[-1]), flush=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    report([r for r in records if r["version"] == __version__])


if __name__ == "__main__":
    main()
