"""
Two ways up the mutual information
==================================

MI-ADM alternates between targets and posterior, MI-D ascends the mutual information of samples
and clusters directly. Both from one pretrained network, on the 1,797 digits that come with
scikit-learn; the classes serve for the scores alone.

    python examples/plot_mutual_information.py [FIGURE.png]
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import normalized_mutual_info_score

from skdeepcluster import MIADM, Autoencoder

X, y = load_digits(return_X_y=True)
autoencoder = FrozenEstimator(Autoencoder(random_state=0).fit(X))

# %%
# With ``tol=0`` a run ends when no label changes any more. The targets of MI-ADM pull the posterior
# towards what it says already, so labels settle at once; MI-D makes the posterior surer of
# everything, and goes on for longer. The penalty ``lam`` bounds that.

figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
for name, parameters in {
    "MI-ADM, closed form": {"solver": "adm"},
    "MI-ADM, exact target": {"solver": "adm", "target": "exact"},
    "MI-D": {"solver": "direct"},
}.items():
    model = MIADM(
        10, autoencoder=autoencoder, max_epochs=60, tol=0, random_state=0, **parameters
    ).fit(X)
    curve = [row["mutual_information"] for row in model.history_]
    (line,) = axes.plot(np.arange(1, len(curve) + 1), curve, label=name)
    n_warm = sum(row["phase"] == "warm-up" for row in model.history_)
    axes.plot(n_warm, curve[n_warm - 1], "o", color=line.get_color())
    nmi = normalized_mutual_info_score(y, model.labels_)
    print(f"{name:22} I = {curve[n_warm - 1]:.3f} -> {curve[-1]:.3f}   NMI with classes {nmi:.3f}")
axes.axhline(np.log(10), color="gray", linestyle=":", label="log 10, the upper bound")
axes.set(xlabel="epoch (dot: end of the warm-up)", ylabel="mutual information I(P), nats")
axes.legend()

path = sys.argv[1] if len(sys.argv) > 1 else "mutual_information.png"
figure.savefig(path, dpi=100)
print(f"\nfigure: {path}")
