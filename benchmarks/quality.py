"""Clustering scores of the default calls, beside k-means, on real data.

    python benchmarks/quality.py --data digits usps pendigits --seeds 5 --data-home FOLDER
    python benchmarks/quality.py --data usps --methods SRKMeans MIADM --cache FOLDER
    python benchmarks/quality.py --data usps --precision bfloat16
    python benchmarks/quality.py --report

Per data set and seed one Autoencoder is pretrained with its defaults; "AE+KMeans", "AE+graph" (the
initial clustering of all methods) and all methods start from it, but for "DKM_a", the annealed
Deep k-Means, which trains from scratch. "MI-D" is MIADM(solver="direct"), "DEPICT-dec" has the
official code's target instead of the paper's. "KMeans" and "Spectral" (scikit-learn's) cluster the
data themselves, "UMAP+KMeans" and "UMAP+GMM" UMAP's coordinates of them, "AE+UMAP+KMeans" and
"AE+UMAP+GMM" UMAP's coordinates of the embedding (N2D); these four need umap-learn, and only run
where --methods names them. Text goes through StandardScaler(with_mean=False) and Normalizer()
first, for all of them, and starts from k-means on the embedding, because its groups are no dense
regions. "pbmc68k_scaled" is "pbmc68k_reduced" with features of unit variance, its X_scaled.
Labels are for the scores alone. Every run is appended as a line to ``results/quality.jsonl``; runs
that are there already (same data, network, precision, method, seed and version) are skipped.
Seconds include the pretraining where there is one. ``--cache`` keeps the pretrained networks for
another time. ``--report`` writes the means of this version to ``docs/quality.csv``.
``--data-home`` has the data sets as ``NAME.npz`` with X and y; digits come with scikit-learn.
"""

import argparse
import csv
import json
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import scipy.sparse
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

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
from skdeepcluster.graph import graph_clustering

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "quality.jsonl"
TABLE = HERE.parent / "docs" / "quality.csv"


def load(name, folder):
    """Flat rows in their own type, classes, and the images' shape or None."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X, y, (1, 8, 8)
    files = {"mnist-test": "mnist", "pbmc68k_scaled": "pbmc68k_reduced"}
    with np.load(folder / f"{files.get(name, name)}.npz") as file:
        y = file["y"]
        if "indptr" in file:
            parts = file["data"], file["indices"].astype(np.int32), file["indptr"]
            X = scipy.sparse.csr_matrix(parts, shape=tuple(file["shape"]))
            recipe = make_pipeline(StandardScaler(with_mean=False), Normalizer())
            return recipe.fit_transform(X), y, None
        X = file["X_scaled" if name == "pbmc68k_scaled" else "X"]
    if name == "mnist-test":
        X, y = X[-10_000:], y[-10_000:]
    image_shape = (1, *X.shape[1:]) if X.ndim == 3 else None
    return np.ascontiguousarray(X.reshape(len(X), -1)), y, image_shape


def timed(function):
    """What a function returns, and its seconds."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def k_means(X, k, seed):
    """Labels by k-means."""
    return KMeans(k, n_init=10, random_state=seed).fit_predict(X)


def gaussian_mixture(X, k, seed):
    """Labels by a mixture of Gaussians."""
    return GaussianMixture(k, n_init=10, random_state=seed).fit_predict(X)


def spectral(X, k, seed):
    """Labels by spectral clustering of the neighbour graph."""
    options = {"affinity": "nearest_neighbors", "assign_labels": "cluster_qr"}
    return SpectralClustering(k, n_neighbors=10, random_state=seed, **options).fit_predict(X)


def umap(X, seed):
    """UMAP's coordinates, with the options its documentation advises for clustering."""
    from umap import UMAP

    options = {"n_components": 10, "n_neighbors": 20, "min_dist": 0.0}
    return UMAP(**options, random_state=seed).fit_transform(X)


# Without a network: functions of the data, the number of clusters and a seed.
SHALLOW = {"KMeans": k_means, "Spectral": spectral}

# The same of UMAP's coordinates.
ON_UMAP = {"UMAP+KMeans": k_means, "UMAP+GMM": gaussian_mixture}

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


def pretrained(X, architecture, seed, path):
    """A fitted Autoencoder and its seconds, from the cache if they are there."""
    if path is not None and path.exists():
        return joblib.load(path)
    autoencoder = Autoencoder(**architecture, random_state=seed)
    autoencoder, seconds = timed(lambda: autoencoder.fit(X))
    if path is not None:
        joblib.dump((autoencoder, seconds), path)
    return autoencoder, seconds


def run(X, y, architecture, seed, methods, path):
    """Fit methods with one seed; yields a record for each."""
    y = np.unique(y, return_inverse=True)[1]
    k = y.max() + 1
    joint = {name: architecture[name] for name in ("precision", "augment")}
    joint["init"] = "k-means" if scipy.sparse.issparse(X) else "auto"

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
            "collapsed": bool(sizes.min() < 0.01 * len(labels) / k),
            **more,
        }

    def on_umap(Z, prefix, before):
        wanted = [method for method in ON_UMAP if prefix + method in methods]
        if not wanted:
            return
        coordinates, embedding = timed(partial(umap, Z, seed))
        for method in wanted:
            labels, seconds = timed(partial(ON_UMAP[method], coordinates, k, seed))
            yield record(prefix + method, labels, before + embedding + seconds)

    for method in methods:
        if method in SHALLOW:
            yield record(method, *timed(partial(SHALLOW[method], X, k, seed)))
    yield from on_umap(X, "", 0)
    if set(methods) <= {*SHALLOW, *ON_UMAP}:
        return
    autoencoder, pretraining = pretrained(X, architecture, seed, path)
    yield from on_umap(autoencoder.transform(X), "AE+", pretraining)
    for method in methods:
        if method in SHALLOW or "UMAP" in method:
            continue
        if method == "AE+KMeans":
            labels, seconds = timed(lambda: k_means(autoencoder.transform(X), k, seed))
            loss = autoencoder.reconstruction_error_
            yield record(method, labels, pretraining + seconds, reconstruction_error=loss)
        elif method == "AE+graph":
            labels, seconds = timed(lambda: graph_clustering(autoencoder.transform(X), k, 10, seed))
            yield record(method, labels, pretraining + seconds)
        else:
            scratch = method == "DKM_a"
            new = Autoencoder(**architecture, n_components=10) if scratch else None
            network = new or FrozenEstimator(autoencoder)
            options = {name: joint[name] for name in joint if not (scratch and name == "init")}
            model = METHODS[method](k, autoencoder=network, random_state=seed, **options)
            labels, seconds = timed(partial(model.fit_predict, X))
            seconds += 0 if scratch else pretraining
            why = {"epochs": model.n_iter_, "stop_reason": model.stop_reason_}
            yield record(method, labels, seconds, **why)


def network_of(record):
    """The network, and the precision and the augmentation where they are not the defaults."""
    precision = record.get("precision", "float32")
    name = record["network"] + ("" if precision == "float32" else f" {precision}")
    return name + (" augmented" if record["augment"] else "")


def report(records):
    """Table for the guide: mean and standard deviation over the seeds."""
    groups = defaultdict(list)
    for r in records:
        groups[r["data"], network_of(r), r["method"]].append(r)
    header = ["data", "network", "method", "ACC", "NMI", "ARI", "seconds", "seeds", "collapsed"]
    lines = [header]
    of_embedding = [f"AE+{method}" for method in ON_UMAP]
    order = [*SHALLOW, *ON_UMAP, "AE+KMeans", *of_embedding, "AE+graph", *METHODS]
    for data, network, method in sorted(groups, key=lambda g: (g[0], g[1], order.index(g[2]))):
        runs = groups[data, network, method]
        cells = [data, "" if method in {*SHALLOW, *ON_UMAP} else network, method]
        for key in ("acc", "nmi", "ari", "seconds"):
            values = [r[key] for r in runs]
            digits = 1 if key == "seconds" else 3
            cells.append(f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}")
        lines.append([*cells, len(runs), sum(r["collapsed"] for r in runs)])
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--network", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--augment", action="store_true", help="shift-rotate, for images")
    parser.add_argument("--seeds", type=int, default=5)
    default = [*SHALLOW, "AE+KMeans", "AE+graph", *METHODS]
    parser.add_argument("--methods", nargs="+", default=default)
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
        flat = network == "mlp" and not arguments.augment
        architecture = {
            "image_shape": None if flat else image_shape,
            "module": network,
            "precision": precision,
            "augment": "shift-rotate" if arguments.augment else None,
        }
        for seed in range(arguments.seeds):
            key = {"data": data, "network": network, "seed": seed, "version": __version__}
            key |= {"precision": precision, "augment": arguments.augment}
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
            for result in run(X, y, architecture, seed, methods, path):
                records.append({**key, **result})
                print(json.dumps(records[-1]), flush=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    if arguments.report:
        report([r for r in records if r["version"] == __version__])


if __name__ == "__main__":
    main()
