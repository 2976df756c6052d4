"""Epochs and fits beside bare torch loops that do the same arithmetic, on real images.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/speed.py --data-home FOLDER
    python benchmarks/speed.py --device cuda

Ours and the other run in turns (A B, B A, A B, ...) in one process, and only the ratio of a pair
counts: other jobs on the machine slow both. A record has the median ratio of wall and of CPU time,
with the 95 % interval of the median from the order statistics of the pairs; the share of the
matrix rate is that of the largest rate at which this torch multiplies 2048 x 2048 float32 matrices.
Records go to ``results/speed.json``, and the tables of the guide are made from them:
``docs/speed.csv`` and ``docs/growth.csv``. ``benchmarks/peers.py`` adds those beside ClustPy.

The bare loop is what one would write by hand with torch's own layers: the data standardised
beforehand as one float32 tensor, batches by index, Adam with its fused kernel, one loss read per
epoch. A joint epoch has the method's clustering loss, then a pass of the encoder over all rows and
the method's full-data update.
"""

import argparse
import csv
import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from skdeepcluster import Autoencoder, SRKMeans, __version__
from skdeepcluster.dcn import HardKMeans
from skdeepcluster.deep_kmeans import DifferentiableKMeans
from skdeepcluster.depict import BalancedDivergence
from skdeepcluster.graph import NeighborGraph
from skdeepcluster.idec import SharpenedDivergence
from skdeepcluster.mi_adm import MutualInformation
from skdeepcluster.networks import build, conv_autoencoder, mlp_autoencoder
from skdeepcluster.objective import JointLoss
from skdeepcluster.sr_kmeans import SoftKMeans
from skdeepcluster.training import ClusteringPhase, Rows, Scaling, Trainer, encode

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "speed.json"
DOCS = HERE.parent / "docs"
N_CLUSTERS, N_COMPONENTS, BATCH = 10, 10, 256
PAPER = (500, 500, 2000)
CONV = {"maps": (50, 50), "kernel_sizes": (4, 5), "strides": (2, 2), "paddings": (0, 2)}


# --- measuring ------------------------------------------------------------------------------------


def clock(function):
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def interval(values):
    """Median, and the order statistics that enclose it with about 95 %."""
    values = np.sort(values)
    margin = max(int(np.floor(len(values) / 2 - 0.98 * np.sqrt(len(values)))), 0)
    return [float(np.median(values)), float(values[margin]), float(values[-1 - margin])]


def compare(name, makers, n_pairs, *, flops=None, rate=None, **more):
    """Time ours (the first maker's function) against the best of the others; returns a record."""
    times = [[] for _ in makers]
    for pair in range(n_pairs + 1):
        functions = [make() for make in makers]
        order = range(len(makers)) if pair % 2 == 0 else reversed(range(len(makers)))
        for i in order:
            seconds = clock(functions[i])
            if pair > 0:  # the first one warms up
                times[i].append(seconds)
    times = np.array(times)
    best = 1 + int(np.median(times[1:, :, 0], axis=1).argmin())
    ratios = times[0] / times[best]
    record = {
        "name": name,
        "wall": interval(ratios[:, 0]),
        "cpu": interval(ratios[:, 1]),
        "seconds": float(np.median(times[0, :, 0])),
        "other_seconds": float(np.median(times[best, :, 0])),
        "pairs": n_pairs,
        **more,
    }
    if flops is not None:
        record["share_of_rate"] = flops / record["seconds"] / rate
    print(json.dumps(record), flush=True)
    return record


def matrix_rate(device):
    """Floating point operations a second in a product of float32 matrices."""
    a = torch.randn(2048, 2048, device=device)
    return 2 * 2048**3 / min(clock(lambda: a @ a)[0] for _ in range(7))


# --- networks by hand -----------------------------------------------------------------------------


class Bare(nn.Module):
    """Encoder and decoder of torch's own layers; two linear layers may be given as widths."""

    def __init__(self, widths, bounded=True):
        super().__init__()
        encoder = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())][:-1]
        self.encode = nn.Sequential(*encoder, nn.Tanh() if bounded else nn.Identity())
        decoder = [m for a, b in pairwise(widths[::-1]) for m in (nn.Linear(a, b), nn.ReLU())]
        self.decode = nn.Sequential(*decoder[:-1])

    def forward(self, x):
        """Embedding and reconstruction loss."""
        z = self.encode(x)
        return z, F.mse_loss(self.decode(z), x)


class BareConvolutions(nn.Module):
    """The convolutional denoising autoencoder for 28 x 28 pixels, with layer-wise targets."""

    def __init__(self):
        super().__init__()
        leaky = nn.LeakyReLU(0.01)
        self.noise = nn.Dropout(0.1)
        self.down = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 50, 4, 2), leaky),
                nn.Sequential(nn.Conv2d(50, 50, 5, 2, 2), leaky),
                nn.Sequential(nn.Flatten(), nn.Linear(2450, N_COMPONENTS), nn.Tanh()),
            ]
        )
        self.up = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(N_COMPONENTS, 2450), leaky, nn.Unflatten(1, (50, 7, 7))),
                nn.Sequential(nn.ConvTranspose2d(50, 50, 5, 2, 2), leaky),
                nn.ConvTranspose2d(50, 1, 4, 2),
            ]
        )

    def forward(self, x):
        """Embedding and reconstruction loss."""
        hidden = self.down[0](self.noise(x))
        z = self.down[2](self.down[1](self.noise(hidden)))
        outputs = [z]
        for layer in self.up:
            outputs.append(layer(outputs[-1]))
        with torch.no_grad():
            clean = [self.down[0](x)]
            clean.append(self.down[1](clean[0]))
        loss = F.mse_loss(outputs[3], x)
        for target, output in zip(clean, outputs[2:0:-1], strict=True):
            loss = loss + 0.1 * F.mse_loss(output, target)
        return z, loss


def mlp_flops(n, widths):
    """Operations of a training epoch: three products a layer, but for the input's gradient."""
    weights = 2 * sum(a * b for a, b in pairwise(widths))
    return 2 * n * (3 * weights - widths[0] * widths[1])


def conv_flops(n):
    """The same of the convolutional network, with its clean pass of the hidden layers."""
    first, second, last = 169 * 50 * 16, 49 * 50 * 50 * 25, 2450 * N_COMPONENTS
    return 2 * n * (6 * (first + second + last) - first + first + second)


# --- methods by hand ------------------------------------------------------------------------------


class BareMethod:
    """Clustering loss and full-data update; what is trained beside the network."""

    def __init__(self, z, labels):
        self.targets = F.one_hot(labels, N_CLUSTERS).float()
        self.prototypes = (self.targets.T @ z / self.targets.sum(0)[:, None]).detach()
        self.trained = []

    def after_step(self, network, x, index):
        """Nothing."""


class BareSoftKMeans(BareMethod):
    """SR-K-means."""

    def loss(self, z, index):
        distances = self.prototypes.square().sum(1) - 2 * z @ self.prototypes.T
        return (self.targets[index] * distances).sum(1).mean() / 0.01

    def update(self, z):
        self.prototypes = self.targets.T @ z / self.targets.sum(0)[:, None]
        self.targets = torch.softmax(-torch.cdist(z, self.prototypes).square() / 0.01, 1)
        return self.targets.argmax(1)


class BareLogistic(BareMethod):
    """MI-ADM and DEPICT."""

    def __init__(self, z, labels, power=2, exponent=0.5, penalty=0.01):
        super().__init__(z, labels)
        self.power, self.exponent, self.penalty = power, exponent, penalty
        self.classify = nn.Linear(N_COMPONENTS, N_CLUSTERS, device=z.device)
        self.trained = list(self.classify.parameters())

    def loss(self, z, index):
        log_p = torch.log_softmax(self.classify(z), 1)
        penalty = self.penalty * self.classify.weight.square().sum() if self.penalty else 0
        return penalty - (self.targets[index] * log_p).sum(1).mean()

    def update(self, z):
        p = torch.softmax(self.classify(z), 1)
        self.targets = p**self.power / (p**self.power).sum(0) ** self.exponent
        self.targets /= self.targets.sum(1, keepdim=True)
        return p.argmax(1)


class BareDepict(BareLogistic):
    """DEPICT."""

    def __init__(self, z, labels):
        super().__init__(z, labels, power=1, penalty=0)


class BareTrainedPrototypes(BareMethod):
    """DKM and IDEC."""

    def __init__(self, z, labels):
        super().__init__(z, labels)
        self.prototypes.requires_grad_()
        self.trained = [self.prototypes]

    def distances(self, z):
        return (z[:, None] - self.prototypes).square().sum(2)


class BareDKM(BareTrainedPrototypes):
    """DKM."""

    def loss(self, z, index):
        distances = self.distances(z)
        return (distances * torch.softmax(-1000 * distances, 1)).sum(1).mean()

    def update(self, z):
        return self.distances(z).argmin(1)


class BareIDEC(BareTrainedPrototypes):
    """IDEC."""

    def posterior(self, z):
        p = 1 / (1 + self.distances(z))
        return p / p.sum(1, keepdim=True)

    def loss(self, z, index):
        q = self.targets[index]
        return 0.1 * (torch.xlogy(q, q) - q * self.posterior(z).log()).sum(1).mean()

    def update(self, z):
        p = self.posterior(z)
        self.targets = p**2 / p.sum(0)
        self.targets /= self.targets.sum(1, keepdim=True)
        return p.argmax(1)


class BareDCN(BareMethod):
    """DCN, its running means by sums over the batch."""

    def __init__(self, z, labels):
        super().__init__(z, labels)
        self.labels, self.counts = labels.clone(), torch.full((N_CLUSTERS, 1), 100.0)
        self.counts = self.counts.to(z.device)

    def loss(self, z, index):
        return 5 * (z - self.prototypes[self.labels[index]]).square().sum(1).mean()

    @torch.no_grad()
    def after_step(self, network, x, index):
        z = network.encode(x)
        labels = torch.cdist(z, self.prototypes).argmin(1)
        self.labels[index] = labels
        added = F.one_hot(labels, N_CLUSTERS).float()
        sums = self.counts * self.prototypes + added.T @ z
        self.counts = self.counts + added.sum(0)[:, None]
        self.prototypes = sums / self.counts

    def update(self, z):
        return torch.cdist(z, self.prototypes).argmin(1)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


METHODS = {
    "SRKMeans": (
        lambda d: SoftKMeans(0.01, zeros(N_CLUSTERS, N_COMPONENTS, dtype=torch.float64)),
        BareSoftKMeans,
    ),
    "MIADM": (
        lambda d: MutualInformation(
            zeros(N_CLUSTERS, N_COMPONENTS),
            zeros(N_CLUSTERS),
            lam=0.01,
            solver="adm",
            target="closed-form",
        ),
        BareLogistic,
    ),
    "DEPICT": (
        lambda d: BalancedDivergence(
            zeros(N_CLUSTERS, N_COMPONENTS), zeros(N_CLUSTERS), gamma=1.0, target="depict"
        ),
        BareDepict,
    ),
    "DeepKMeans": (
        lambda d: DifferentiableKMeans(
            zeros(N_CLUSTERS, N_COMPONENTS), np.array([1000.0]), lam=1.0, n_features=d
        ),
        BareDKM,
    ),
    "DCN": (
        lambda d: HardKMeans(
            zeros(N_CLUSTERS, N_COMPONENTS, dtype=torch.float64),
            lam=10.0,
            n_features=d,
            init_count=100,
        ),
        BareDCN,
    ),
    "IDEC": (
        lambda d: SharpenedDivergence(zeros(N_CLUSTERS, N_COMPONENTS), lam=0.1, reconstruct=True),
        BareIDEC,
    ),
}


# --- the two loops --------------------------------------------------------------------------------


def labels_of(z):
    """Some clustering to start from, without empty clusters."""
    k_means = KMeans(N_CLUSTERS, n_init=1, random_state=0)
    return torch.from_numpy(k_means.fit_predict(z.cpu().numpy())).long().to(z.device)


class Constant(NeighborGraph):
    """A neighbour graph that takes its time, and never ends training."""

    def modularity(self, labels):
        super().modularity(labels)
        return 0.0


def ours(X, network, n_epochs, device, *, method=None, dtype=torch.float32, shape=None):
    """Epochs by the package's trainer, as a function to time."""
    network = build(network).to(device)
    network.generator = torch.Generator(device).manual_seed(0)
    rows = Rows(X, Scaling.of(X), shape or X.shape[1:], device)
    objective = after_epoch = None
    if method is not None:
        objective = METHODS[method][0](X.shape[1]).to(device)
        z = encode(network, rows)
        labels = labels_of(z)
        with torch.no_grad():
            objective.start(z, labels)
        # The method's own targets from the first epoch on.
        objective.warm_up = False
        graph = Constant(z.cpu().numpy(), 0)
        after_epoch = ClusteringPhase(
            network, objective, rows, labels, graph, N_CLUSTERS, tol=-1, max_epochs=n_epochs
        )
    trainer = Trainer(
        JointLoss(network, objective, dtype=dtype),
        optimizer="Adam",
        lr=1e-4,
        batch_size=BATCH,
        order=torch.Generator().manual_seed(0),
        device=device,
        after_epoch=after_epoch,
    )

    def train():
        assert trainer.train(rows, n_epochs) == "max_epochs"

    return train


def bare(X, network, n_epochs, device, *, method=None, channels_last=False, shape=None):
    """The same by hand."""
    network = network().to(device)
    is_sparse = scipy.sparse.issparse(X)
    if is_sparse:
        mean = X.mean()
        scale = np.sqrt(X.multiply(X).mean() - mean**2)
    else:
        x_all = torch.tensor((X - X.mean()) / X.std(), dtype=torch.float32, device=device)
        x_all = x_all if shape is None else x_all.view(-1, *shape)
    if channels_last:
        network = network.to(memory_format=torch.channels_last)
        x_all = x_all.contiguous(memory_format=torch.channels_last)
    order = torch.Generator().manual_seed(0)
    state = None
    if method is not None:
        with torch.no_grad():
            z = network.encode(x_all)
        state = METHODS[method][1](z, labels_of(z))
    scale_of_loss = X.shape[1] if method in ("DeepKMeans", "DCN") else 1

    def train():
        trained = [*network.parameters(), *(state.trained if state else [])]
        optimizer = torch.optim.Adam(trained, lr=1e-4, fused=True)
        for _ in range(n_epochs):
            losses = []
            permutation = torch.randperm(X.shape[0], generator=order).to(device)
            for index in permutation.split(BATCH):
                if is_sparse:
                    x = torch.from_numpy((X[index.numpy()].toarray() - mean) / scale).float()
                else:
                    x = x_all[index]
                optimizer.zero_grad()
                z, loss = network(x)
                if state:
                    loss = scale_of_loss * loss + state.loss(z, index)
                loss.backward()
                optimizer.step()
                if state:
                    state.after_step(network, x, index)
                losses.append(loss.detach())
            float(torch.stack(losses).mean())
            if state:
                with torch.no_grad():
                    z = torch.cat([network.encode(x) for x in x_all.split(1024)])
                    labels = state.update(z)
                    int(labels.bincount(minlength=N_CLUSTERS).min())

    return train


def e_step_share(X, network, device):
    """Share of an epoch that the full-data update takes, its pass of the encoder included."""
    shares = []
    for _ in range(7):
        network_ = build(network)
        rows = Rows(X, Scaling.of(X), X.shape[1:], device)
        objective = METHODS["SRKMeans"][0](X.shape[1])
        z = encode(network_.to(device), rows)
        labels = labels_of(z)
        objective.to(device).start(z, labels)
        objective.warm_up = False
        graph = Constant(z.cpu().numpy(), 0)
        phase = ClusteringPhase(
            network_, objective, rows, labels, graph, N_CLUSTERS, tol=-1, max_epochs=1
        )
        update = clock(phase)[0]
        whole = clock(ours(X, network, 1, device, method="SRKMeans"))[0]
        shares.append(update / whole)
    record = {"name": "E-step, share of a joint epoch, SRKMeans", "wall": interval(shares)}
    print(json.dumps(record), flush=True)
    return record


def growth(X, device):
    """Seconds of a whole fit of n rows at fixed epochs, and the exponent of n."""
    sizes = [10_000, 20_000, 40_000, 70_000]
    seconds = []
    for n in sizes:
        autoencoder = Autoencoder(max_epochs=1, hidden_layer_sizes=(256,), random_state=0)
        model = SRKMeans(
            10, autoencoder=autoencoder, max_epochs=2, tol=0, device=str(device), random_state=0
        )
        seconds.append(min(clock(lambda m=model, n=n: m.fit(X[:n]))[0] for _ in range(3)))
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    record = {"name": "growth", "sizes": sizes, "seconds": seconds, "exponent": exponent}
    print(json.dumps(record), flush=True)
    return record


# --- tables ---------------------------------------------------------------------------------------


def save(section, records):
    """Replace a section of the results, and make the tables anew."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    results[section] = {"version": __version__, **machine, "records": records}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    def cells(record):
        spread = "{:.2f} [{:.2f}, {:.2f}]"
        share = f"{record['share_of_rate']:.2f}" if "share_of_rate" in record else ""
        cpu = spread.format(*record["cpu"]) if "cpu" in record else ""
        seconds = f"{record['seconds']:.2f}" if "seconds" in record else ""
        return [record["name"], spread.format(*record["wall"]), cpu, seconds, share]

    header = ["what", "wall time, ours / other", "CPU time", "seconds, ours", "share of rate"]
    for name, rows in results.items():
        with (DOCS / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if name.startswith("growth"):
                writer.writerow(["rows", "seconds"])
                (record,) = rows["records"]
                pairs = zip(record["sizes"], record["seconds"], strict=True)
                writer.writerows([n, f"{s:.1f}"] for n, s in pairs)
                writer.writerow(["exponent", f"{record['exponent']:.2f}"])
            else:
                writer.writerow(header)
                writer.writerows(map(cells, rows["records"]))


def images(data_home):
    with np.load(data_home / "mnist.npz") as file:
        return file["X"].reshape(70_000, 784)


def sparse_text(data_home):
    with np.load(data_home / "news20_tfidf2000.npz") as file:
        parts = tuple(file[part] for part in ("data", "indices", "indptr"))
        return scipy.sparse.csr_matrix(parts, shape=tuple(file["shape"]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-home", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--parts", nargs="+", default=["epochs", "growth"])
    arguments = parser.parse_args()
    device, n_pairs = torch.device(arguments.device), arguments.pairs
    suffix = "" if device.type == "cpu" else f"-{device.type}"

    mnist = images(arguments.data_home)
    if "epochs" in arguments.parts:
        X = mnist[:6_000].astype(np.float32)
        digits = load_digits().data.astype(np.float32)
        paper = [784, *PAPER, N_COMPONENTS]
        tiny = [64, 64, N_COMPONENTS]
        rate = matrix_rate(device)
        print(f"{rate / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads", flush=True)

        def mlp(d, hidden):
            return lambda: mlp_autoencoder(d, N_COMPONENTS, hidden_layer_sizes=hidden, bounded=True)

        def conv():
            return conv_autoencoder((1, 28, 28), N_COMPONENTS, **CONV, bounded=True)

        def pair(name, X, network, by_hand, n_epochs=1, flops=None, **options):
            method = options.get("method")
            makers = [
                lambda: ours(X, network, n_epochs, device, **options),
                lambda: bare(X, by_hand, n_epochs, device, method=method),
            ]
            return compare(name, makers, n_pairs, flops=flops, rate=rate)

        flops = mlp_flops(len(X), paper)
        text = sparse_text(arguments.data_home)[:6_000]
        image = {"shape": (1, 28, 28)}
        images_ = X[:2_000]
        records = [
            pair(
                "pretraining, 784-500-500-2000-10",
                X,
                mlp(784, PAPER),
                lambda: Bare(paper),
                1,
                flops,
            ),
            pair(
                "the same in bfloat16, bare loop in float32",
                X,
                mlp(784, PAPER),
                lambda: Bare(paper),
                1,
                flops,
                dtype=torch.bfloat16,
            ),
            pair("pretraining, 64-64-10 on digits", digits, mlp(64, (64,)), lambda: Bare(tiny), 20),
            compare(
                "pretraining, convolutions",
                [
                    lambda: ours(images_, conv, 1, device, **image),
                    lambda: bare(images_, BareConvolutions, 1, device, **image),
                    lambda: bare(images_, BareConvolutions, 1, device, channels_last=True, **image),
                ],
                n_pairs,
                flops=conv_flops(len(images_)),
                rate=rate,
            ),
            pair(
                "pretraining, 2000-500-500-2000-10, CSR",
                text,
                mlp(2000, PAPER),
                lambda: Bare([2000, *PAPER, N_COMPONENTS]),
            ),
            *(
                pair(
                    f"joint, 784-500-500-2000-10, {m}",
                    X,
                    mlp(784, PAPER),
                    lambda: Bare(paper),
                    method=m,
                )
                for m in METHODS
            ),
            *(
                pair(
                    f"joint, 64-64-10 on digits, {m}",
                    digits,
                    mlp(64, (64,)),
                    lambda: Bare(tiny),
                    20,
                    method=m,
                )
                for m in METHODS
            ),
            e_step_share(X, mlp(784, PAPER), device),
        ]
        save(f"speed{suffix}", records)
    if "growth" in arguments.parts:
        save(f"growth{suffix}", [growth(mnist, device)])


if __name__ == "__main__":
    main()
