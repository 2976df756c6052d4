"""
Choosing lam, alpha and the number of clusters without labels
=============================================================

A grid over ``lam`` and ``alpha`` of Deep k-Means inside a Pipeline, judged by scores of the input
alone, and a scan over the number of clusters. On the first 900 of scikit-learn's digits; only the
last column and the last line look at their classes, to see how good the choice was.

    python examples/plot_model_choice.py [FIGURE.png]
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler

from skdeepcluster import (
    Autoencoder,
    DeepKMeans,
    SingleFit,
    SRKMeans,
    input_silhouette,
    neighbor_agreement,
    scan_n_clusters,
)

X, y = (part[:900] for part in load_digits(return_X_y=True))

# %%
# **lam and alpha.** ``SingleFit`` fits every candidate once, on all of the data. The neighbours
# decide; the classes are passed for the third score alone, which decides nothing.

autoencoder = Autoencoder(max_epochs=60)
pipeline = Pipeline(
    [
        ("scale", MinMaxScaler()),
        ("cluster", DeepKMeans(10, autoencoder=autoencoder, max_epochs=30, random_state=0)),
    ]
)
scores = {
    "neighbors": neighbor_agreement,
    "silhouette": input_silhouette,
    "nmi": "normalized_mutual_info_score",
}
grid = {"cluster__lam": [0.1, 10, 1000], "cluster__alpha": [0.1, 1000]}
search = GridSearchCV(pipeline, grid, scoring=scores, cv=SingleFit(), refit="neighbors").fit(X, y)

print(f"{'lam':>6}{'alpha':>7}{'neighbours':>12}{'silhouette':>12}{'NMI with classes':>18}")
columns = [search.cv_results_[f"mean_test_{name}"] for name in scores]
for parameters, *values in zip(search.cv_results_["params"], *columns, strict=True):
    lam, alpha = parameters["cluster__lam"], parameters["cluster__alpha"]
    print(
        f"{lam:>6}{alpha:>7}"
        + "".join(f"{v:>{w}.3f}" for v, w in zip(values, (12, 12, 18), strict=True))
    )
chosen = normalized_mutual_info_score(y, search.predict(X))
print(f"chosen: {search.best_params_}, NMI {chosen:.3f}")

# %%
# **The number of clusters.** One network, pretrained once, and a fit for every number.

model = SRKMeans(autoencoder=autoencoder, max_epochs=30, random_state=0)
scan = scan_n_clusters(model, X, np.arange(4, 17, 2))

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(scan.n_clusters, scan.score, "o-", label="silhouette in the input")
axes.set(xlabel="number of clusters", ylabel="silhouette")
sizes = axes.twinx()
sizes.plot(scan.n_clusters, scan.smallest_cluster, "s:", color="gray", label="smallest cluster")
sizes.set(ylabel="samples", ylim=(0, None))
figure.legend(loc="outside upper center", ncols=2)

path = sys.argv[1] if len(sys.argv) > 1 else "model_choice.png"
figure.savefig(path, dpi=100)
print(f"\nfigure: {path}")
