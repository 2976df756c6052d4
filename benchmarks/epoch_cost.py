"""Cost of a training epoch beside a bare torch loop that does the same arithmetic.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/epoch_cost.py

Both run in turns (A B, B A, A B, ...) in one process, and only the ratio of a pair counts: other
jobs on the machine slow both. Printed: the median ratio of wall time and of CPU time, with the
95 % interval of the median from the order statistics of the pairs.

The bare loop is what one would write by hand: the data standardised beforehand as one float32
tensor, batches by index, Adam with its fused kernel, one loss read per epoch. The joint epoch adds
the clustering loss, and a pass of the encoder over all rows with the closed-form update.
"""

import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from skdeepcluster.networks import build, mlp_autoencoder
from skdeepcluster.objective import JointLoss
from skdeepcluster.sr_kmeans import SoftKMeans
from skdeepcluster.training import ClusteringPhase, Rows, Scaling, Trainer

N_PAIRS = 9
N_CLUSTERS, TEMPERATURE = 10, 0.01


def make_network(d, hidden):
    return build(lambda: mlp_autoencoder(d, 10, hidden_layer_sizes=hidden, bounded=True), seed=0)


def ours(X, hidden, n_epochs, joint):
    """Epochs by the package's trainer."""
    device = torch.device("cpu")
    network, rows = make_network(X.shape[1], hidden), Rows(X, Scaling.of(X), X.shape[1:], device)
    objective = after_epoch = None
    if joint:
        objective = SoftKMeans(TEMPERATURE, torch.zeros(N_CLUSTERS, 10, dtype=torch.float64))
        labels = torch.arange(len(X)) % N_CLUSTERS
        objective.start(torch.zeros(len(X), 10), labels)
        after_epoch = ClusteringPhase(network, objective, rows, labels, tol=0, max_epochs=n_epochs)
    trainer = Trainer(
        JointLoss(network, objective),
        optimizer="Adam",
        lr=1e-4,
        batch_size=256,
        order=torch.Generator().manual_seed(0),
        device=device,
        after_epoch=after_epoch,
    )
    return lambda: trainer.train(rows, n_epochs)


def bare(X, hidden, n_epochs, joint):
    """The same by hand."""
    network = make_network(X.shape[1], hidden)
    x_all = torch.tensor((X - X.mean()) / X.std(), dtype=torch.float32)
    order = torch.Generator().manual_seed(0)
    q = F.one_hot(torch.arange(len(X)) % N_CLUSTERS, N_CLUSTERS).float()
    prototypes = torch.zeros(N_CLUSTERS, 10)

    def train():
        nonlocal q, prototypes
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
        for epoch in range(n_epochs):
            losses = []
            attractors, offsets = q @ prototypes, q @ prototypes.square().sum(1)
            for index in torch.randperm(len(X), generator=order).split(256):
                x = x_all[index]
                optimizer.zero_grad()
                z = network.encode(x)
                loss = F.mse_loss(network.decode(z), x)
                if joint:
                    pull = (z * attractors[index]).sum(1)
                    loss = loss + (offsets[index] - 2 * pull).mean() / TEMPERATURE
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            float(torch.stack(losses).mean())
            if joint:
                with torch.no_grad():
                    z = torch.cat([network.encode(x) for x in x_all.split(1024)])
                    prototypes = (q.T @ z) / q.sum(0)[:, None]
                    if epoch >= n_epochs // 2:
                        distances = torch.cdist(z, prototypes).square()
                        q = torch.softmax(-distances / TEMPERATURE, 1)
                    int((q.argmax(1)).bincount(minlength=N_CLUSTERS).min())

    return train


def clock(function):
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def interval(ratios):
    """Median, and the order statistics that enclose it with about 95 %."""
    ratios = np.sort(ratios)
    margin = int(np.floor(len(ratios) / 2 - 0.98 * np.sqrt(len(ratios))))
    margin = max(margin, 0)
    return f"{np.median(ratios):.3f} [{ratios[margin]:.3f}, {ratios[-1 - margin]:.3f}]"


def compare(name, X, hidden, n_epochs, joint):
    pairs = []
    for pair in range(N_PAIRS + 1):
        loops = [ours(X, hidden, n_epochs, joint), bare(X, hidden, n_epochs, joint)]
        turns = [0, 1] if pair % 2 == 0 else [1, 0]
        times = dict(zip(turns, [clock(loops[i]) for i in turns], strict=True))
        pairs.append(np.divide(times[0], times[1]))
    wall, cpu = np.transpose(pairs[1:])  # the first pair warms up
    seconds = times[1][0] / n_epochs
    print(f"| {name} | {interval(wall)} | {interval(cpu)} | {seconds:.3f} |", flush=True)


def main():
    digits = load_digits().data.astype(np.float32)
    # The arithmetic does not depend on the values: noise stands in for MNIST's first 10,000 rows.
    images = np.random.default_rng(0).random((10_000, 784), dtype=np.float32)
    print(f"{torch.get_num_threads()} threads, {N_PAIRS} pairs, torch {torch.__version__}")
    print("| epoch | wall, ours / bare | CPU, ours / bare | bare seconds an epoch |")
    print("|---|---|---|---|")
    for joint in (False, True):
        phase = "joint" if joint else "pretraining"
        compare(f"{phase}, 64-64-10 on digits", digits, (64,), 20, joint)
        compare(f"{phase}, 784-500-500-2000-10", images, (500, 500, 2000), 1, joint)


if __name__ == "__main__":
    main()
