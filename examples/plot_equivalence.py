"""
One model, four names
=====================

The papers' theory in numbers: soft k-means is a logistic posterior, Deep k-Means has the same
assignments, and with an encoder that stands still DCN is scikit-learn's MiniBatchKMeans.

    python examples/plot_equivalence.py [FIGURE.png]
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import softmax
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits

from skdeepcluster import SRKMeans, annealing_schedule
from skdeepcluster.dcn import HardKMeans
from skdeepcluster.deep_kmeans import DifferentiableKMeans
from skdeepcluster.information import mi_adm_bound, mutual_information
from skdeepcluster.targets import dec_target, exact_mi_adm_target, mi_adm_target

X, _ = load_digits(return_X_y=True)
model = SRKMeans(10, lam=0.05, random_state=0).fit(X)
Z, Q = model.transform(X), model.predict_proba(X)


def differ(a, b):
    """Largest difference of two tables of probabilities."""
    return f"largest difference {np.abs(np.asarray(a) - np.asarray(b)).max():.0e}"


# %%
# **Proposition 2.** The soft assignment to prototypes at temperature lam k is a logistic
# posterior with weights 2 / (lam k) times the prototypes, and biases from their norms.

P = softmax(Z @ model.coef_.T + model.intercept_, axis=1)
print("SR-K-means as a logistic posterior: ", differ(P, Q))

# The paper's own weights are half of that, and its bias is half the logarithm of the cluster
# sizes: the norms of the prototypes are dropped, which may change labels.
paper = Z @ model.coef_.T / 2 + np.log(Q.mean(axis=0)) / 2
share = np.mean(paper.argmax(axis=1) != model.labels_)
print(f"with the bias of the paper:          {share:.1%} of the labels are others")

# %%
# **Deep k-Means** has the same assignments at alpha = 1 / (lam k), but not the same loss: it
# lacks the entropy of the assignments, so its prototypes move otherwise.

alpha = 1 / (model.lam * model.n_clusters)
deep = DifferentiableKMeans(torch.tensor(model.cluster_centers_), [alpha], lam=1.0, n_features=64)
print("Deep k-Means' assignments:          ", differ(deep.log_posterior(torch.tensor(Z)).exp(), Q))

# %%
# **DCN** with fixed embeddings, batch by batch, beside ``MiniBatchKMeans.partial_fit``.

start = torch.tensor(model.cluster_centers_)
dcn = HardKMeans(start, lam=1.0, n_features=64)
dcn.start(torch.tensor(Z), torch.tensor(model.labels_).long())
k_means = MiniBatchKMeans(10, init=dcn.prototypes.numpy(), n_init=1, reassignment_ratio=0)
for batch in np.random.default_rng(0).permutation(len(Z)).reshape(-1, 599):
    dcn.after_step(torch.tensor(Z[batch]), torch.tensor(batch))
    k_means.partial_fit(Z[batch])
print("DCN's running means:                ", differ(dcn.prototypes, k_means.cluster_centers_))

# %%
# **Proposition 3.** With free posteriors P <- Q, the exact target never lowers the mutual
# information, nor does that of DEC; the closed form of MI-ADM almost never does. Here from random
# posteriors. The bound A(P, Q) of every step is below I(Q).

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
random = torch.tensor(softmax(np.random.default_rng(0).normal(size=(200, 10)), axis=1)).log()
for name, target in {
    "MI-ADM, exact": exact_mi_adm_target,
    "MI-ADM, closed form": mi_adm_target,
    "DEC": dec_target,
}.items():
    log_p, curve = random, [float(mutual_information(random.exp()))]
    for _ in range(12):
        q = target(log_p)
        assert mi_adm_bound(q, log_p) <= mutual_information(q) + 1e-12
        log_p = q.log()
        curve.append(float(mutual_information(q)))
    left.plot(curve, label=name)
    print(f"I(P) along {name:20} lowest step {np.diff(curve).min():+.1e}")
left.axhline(np.log(10), color="gray", linestyle=":", label="log 10")
left.set(xlabel="steps P <- Q(P)", ylabel="mutual information, nats")
left.legend()

# %%
# **Annealing.** Deep k-Means' loss falls with alpha, from the mean distance to that of k-means,
# and is no more than log(k) / alpha above the latter.

distances = np.square(Z[:, None] - model.cluster_centers_).sum(axis=2)
alphas = annealing_schedule()
losses = [(softmax(-a * distances, axis=1) * distances).sum(axis=1).mean() for a in alphas]
hard = distances.min(axis=1).mean()
right.plot(alphas, losses, ".-", label="Deep k-Means")
right.plot(alphas, hard + np.log(10) / alphas, "--", label="k-means + log(k) / alpha")
right.axhline(hard, color="gray", linestyle=":", label="k-means")
right.set(xscale="log", yscale="log", xlabel="alpha", ylabel="loss per sample")
right.legend()

path = sys.argv[1] if len(sys.argv) > 1 else "equivalence.png"
figure.savefig(path, dpi=100)
print(f"\nfigure: {path}")
