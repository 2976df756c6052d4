"""What happens between two epochs of joint training: E-step, warm-up, stopping rule."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..graph import NeighborGraph
from ..networks import Network
from ..objective import Objective
from .inference import encode
from .rows import Rows

# Epochs that are averaged to see whether the agreement still rises. The official code waits 5
# epochs for a new best; but the first epochs can agree best, before training has moved anything.
_WINDOW = 5

# Shares of the mean size: below the first a cluster is about to be lost, some epochs later it would
# be two or three samples; from the second on it was a cluster that can be lost.
_VANISHING, _HEALTHY = 0.02, 0.1

# Modularity that joint training may lose. What it changes for the better costs less than .005 of it
# (measured on digits, USPS and MNIST); where clusters drain into each other it falls much further.
_MODULARITY_LOSS = 0.02


class ClusteringPhase:
    """The full-data part of joint training, called after every epoch.

    Encodes all samples, lets the objective update its targets, and decides what comes next.
    The warm-up keeps the initial labels as targets. It is over once the model's own assignments
    have stopped to agree more and more with them, or have half of the epochs behind them.
    Training has converged once no more than ``tol`` of the labels change in an epoch. It ends
    early once a cluster that had a tenth of the mean size has shrunk to a fiftieth, or once the
    clusters have lost a fiftieth of modularity on the neighbour graph of the initial embedding, and
    goes back to the epoch where that was highest, or without a graph to the one before. None of
    this happens before the objective has settled.

    Parameters
    ----------
    network : Network
        Autoencoder.
    objective : Objective
        Started already.
    rows : Rows
        All samples.
    labels : Tensor of shape (n,)
        Initial labels.
    graph : NeighborGraph or None
        Of the initial embedding. None where that says nothing.
    n_clusters : int
        Number of clusters.
    tol : float
        Share of labels.
    max_epochs : int
        Length of the phase at most.
    """

    def __init__(
        self,
        network: Network,
        objective: Objective,
        rows: Rows,
        labels: Tensor,
        graph: NeighborGraph | None,
        n_clusters: int,
        *,
        tol: float,
        max_epochs: int,
    ):
        self._network = network
        self._objective = objective
        self._rows = rows
        self._initial = labels
        self._labels = labels
        self._graph = graph
        self._most_modular = -1.0
        self._tol = tol
        self._epoch = 0
        self._warm_up_epochs = max_epochs // 2 if objective.warm_up else 0
        objective.warming = self._warm_up_epochs > 0
        self._agreements: list[float] = []
        self._largest_sizes = torch.zeros(n_clusters, dtype=torch.int64, device=labels.device)
        self._best = self._snapshot()
        self._mean_size = len(labels) / n_clusters

    @torch.no_grad()
    def __call__(self) -> tuple[dict[str, float | str], str | None]:
        """Numbers for the history, and the reason to stop or None."""
        z = encode(self._network, self._rows)
        warm = self._epoch < self._warm_up_epochs
        numbers = self._objective.e_step(z, self._epoch, self._initial if warm else None)
        labels = self._objective.labels
        sizes = torch.bincount(labels, minlength=len(self._largest_sizes))
        change = float((labels != self._labels).float().mean())
        self._labels = labels
        self._epoch += 1
        record: dict[str, float | str] = {
            "phase": "warm-up" if warm else "joint",
            "n_reseeded": 0,
            **numbers,
            "label_change": change,
            "smallest_cluster": int(sizes.min()),
        }
        modularity = 0.0
        if self._graph is not None:
            modularity = self._graph.modularity(labels.cpu().numpy())
            record["modularity"] = modularity
        if not self._objective.is_settled(self._epoch - 1):
            return record, None
        was_healthy = self._largest_sizes >= _HEALTHY * self._mean_size
        vanishing = (sizes < _VANISHING * self._mean_size) & was_healthy
        if vanishing.any():
            self._go_back()
            return record, "vanishing cluster"
        if not warm and modularity < self._most_modular - _MODULARITY_LOSS:
            self._go_back()
            return record, "falling modularity"
        if modularity >= self._most_modular:
            self._most_modular, self._best = modularity, self._snapshot()
        self._largest_sizes = torch.maximum(self._largest_sizes, sizes)
        if warm:
            self._watch_agreement(float((labels == self._initial).float().mean()))
            if self._epoch == self._warm_up_epochs:
                # The next epoch has the method's own targets.
                self._objective.warming = False
                update = self._objective.e_step(z, self._epoch - 1)
                record["n_reseeded"] = update.get("n_reseeded", 0)
            return record, None
        return record, "tol" if change <= self._tol else None

    def _modules(self) -> tuple[nn.Module, nn.Module]:
        """What training changes."""
        return self._network, self._objective

    def _go_back(self) -> None:
        """Take the state of the highest modularity, or of the last epoch."""
        for module, state in zip(self._modules(), self._best, strict=True):
            module.load_state_dict(state)

    def _snapshot(self) -> list[dict[str, Tensor]]:
        """Copies of the network's and the objective's state."""
        return [
            {name: value.clone() for name, value in module.state_dict().items()}
            for module in self._modules()
        ]

    def _watch_agreement(self, agreement: float) -> None:
        """End the warm-up once the agreement has stopped rising."""
        self._agreements.append(agreement)
        before, now = self._agreements[-2 * _WINDOW : -_WINDOW], self._agreements[-_WINDOW:]
        stalled = len(before) == _WINDOW and sum(now) - sum(before) <= self._tol * _WINDOW
        if stalled or (len(now) == _WINDOW and min(now) >= 1 - self._tol):
            self._warm_up_epochs = self._epoch
