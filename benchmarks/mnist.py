"""The default call on MNIST: scores, seconds, peak memory, reconstruction error.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/mnist.py FOLDER/mnist.npz
    OMP_WAIT_POLICY=PASSIVE python benchmarks/mnist.py FOLDER/mnist.npz --network conv

"mlp" is ``SRKMeans(n_clusters=10, random_state=0).fit_predict(X)`` on all 70,000 digits as flat
uint8; "conv" the convolutional network on the last 10,000. Memory is the process's peak beyond what
it held before the fit, imports and X included there. The reconstruction error is a share of the
variance of each pixel about its own mean: the mean image scores 1. It is given after pretraining
and at the end; joint training gives up some of it, by design.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from skdeepcluster import Autoencoder, SRKMeans, clustering_accuracy


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def error_share(inverse, X):
    """Squared error of reconstructions over the squared distances from the mean image."""
    parts = np.array_split(X, 1 + len(X) // 5000)
    error = sum(np.square(inverse(part) - part).sum(dtype=np.float64) for part in parts)
    return error / (X.var(axis=0, dtype=np.float64).sum() * len(X))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("../shared/data/mnist.npz"))
    parser.add_argument("--network", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    if not arguments.file.exists():
        print(f"skipped: no {arguments.file}; give the path of an npz file with X and y")
        return
    with np.load(arguments.file) as file:
        X, y = file["X"], file["y"]
    X = X.reshape(len(X), -1)
    autoencoder = None
    if arguments.network == "conv":
        X, y = X[-10_000:], y[-10_000:]
        autoencoder = Autoencoder(image_shape=(1, 28, 28))

    before, start = peak_mb(), time.perf_counter()
    model = SRKMeans(
        n_clusters=10, autoencoder=autoencoder, precision=arguments.precision, random_state=0
    )
    labels = model.fit_predict(X)
    seconds, memory = time.perf_counter() - start, peak_mb() - before

    phases = [row["phase"] for row in model.history_]
    pretrained = [row["train_loss"] for row in model.history_ if row["phase"] == "pretraining"][-1]
    sizes = np.bincount(labels, minlength=10)
    print(f"{arguments.network} network, {len(X)} digits, uint8, {arguments.precision}")
    print(
        f"ACC {clustering_accuracy(y, labels):.3f}  "
        f"NMI {normalized_mutual_info_score(y, labels):.3f}  {seconds:.0f} s"
    )
    print(f"peak memory of the fit: {memory:.0f} MB; smallest cluster {sizes.min()}")
    print(
        f"epochs: {phases.count('pretraining')} pretraining, {phases.count('warm-up')} warm-up, "
        f"{phases.count('joint')} joint; stopped by {model.stop_reason_}"
    )
    share = error_share(lambda part: model.inverse_transform(model.transform(part)), X)
    plateau = X.var(axis=0, dtype=np.float64).mean() / X.var(dtype=np.float64)
    print(
        f"last pretraining loss (noisy, all terms) over that of the mean image: "
        f"{pretrained / plateau:.3f}"
    )
    print(f"reconstruction error as a share of the variance, after joint training: {share:.3f}")


if __name__ == "__main__":
    main()
