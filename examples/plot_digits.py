"""
Cluster handwritten digits
==========================

SRKMeans on the 1,797 digits that come with scikit-learn, beside k-means on the pixels and k-means
on the embedding of the same pretrained autoencoder. The true digits serve for the scores alone.

    python examples/plot_digits.py [FIGURE.png]
"""

import sys
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from skdeepcluster import Autoencoder, SRKMeans, clustering_accuracy

X, y = load_digits(return_X_y=True)


def timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


# %%
# Three ways to ten clusters. ``SRKMeans(n_clusters=10).fit_predict(X)`` would pretrain its own
# network; here a fitted one is passed, frozen, so that both methods start from the same.

k_means = KMeans(n_clusters=10, n_init=10, random_state=0)
on_pixels, seconds_pixels = timed(k_means.fit_predict, X)

autoencoder, seconds_pretraining = timed(Autoencoder(random_state=0).fit, X)
on_embedding, seconds_embedding = timed(k_means.fit_predict, autoencoder.transform(X))

model = SRKMeans(n_clusters=10, autoencoder=FrozenEstimator(autoencoder), random_state=0)
joint, seconds_joint = timed(model.fit_predict, X)

rows = {
    "KMeans": (on_pixels, seconds_pixels),
    "AE+KMeans": (on_embedding, seconds_pretraining + seconds_embedding),
    "SRKMeans": (joint, seconds_pretraining + seconds_joint),
}
print(f"{'':12}{'ACC':>8}{'NMI':>8}{'ARI':>8}{'seconds':>10}")
for name, (labels, seconds) in rows.items():
    scores = [
        clustering_accuracy(y, labels),
        normalized_mutual_info_score(y, labels),
        adjusted_rand_score(y, labels),
    ]
    print(f"{name:12}" + "".join(f"{score:8.3f}" for score in scores) + f"{seconds:10.1f}")

# %%
# The embedding and its prototypes, the prototypes as images, and how training went.

figure = plt.figure(figsize=(11, 7), layout="constrained")
grid = figure.add_gridspec(2, 2, height_ratios=[3, 2])

plane = PCA(2).fit(model.transform(X))
points, centers = plane.transform(model.transform(X)), plane.transform(model.cluster_centers_)
axes = figure.add_subplot(grid[0, 0])
axes.scatter(*points.T, c=model.labels_, cmap="tab10", s=5, alpha=0.5)
axes.scatter(*centers.T, c=np.arange(10), cmap="tab10", s=120, marker="X", edgecolors="black")
axes.set(title="Embedding, first two principal components", xticks=[], yticks=[])

images = model.inverse_transform(model.cluster_centers_).reshape(10, 8, 8)
images = np.pad(images, [(0, 0), (1, 1), (1, 1)])
axes = figure.add_subplot(grid[0, 1])
axes.imshow(np.block([list(images[:5]), list(images[5:])]), cmap="gray_r")
axes.set(title="Prototypes, decoded", xticks=[], yticks=[])

axes = figure.add_subplot(grid[1, 0])
axes.plot([row["train_loss"] for row in autoencoder.history_])
axes.set(title="Pretraining", xlabel="epoch", ylabel="reconstruction loss", yscale="log")

axes = figure.add_subplot(grid[1, 1])
epochs = [row["epoch"] for row in model.history_]
axes.plot(epochs, [row["label_change"] for row in model.history_], label="labels changed (share)")
axes.plot(epochs, [row["reconstruction_loss"] for row in model.history_], label="reconstruction")
n_warm = sum(row["phase"] == "warm-up" for row in model.history_)
axes.axvline(n_warm + 0.5, color="gray", linestyle=":", label="end of warm-up")
axes.set(title="Joint training", xlabel="epoch")
axes.legend()

path = sys.argv[1] if len(sys.argv) > 1 else "digits.png"
figure.savefig(path, dpi=100)
print(f"\nfigure: {path}")
