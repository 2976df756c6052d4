"""What the training loop asks of a method, and the loss it minimises."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .networks import Network, reconstruct


class Objective(nn.Module, ABC):
    """The four functions in which the methods differ.

    The loop calls ``start`` once with the initial clustering; then, per epoch, ``loss`` on every
    minibatch, ``after_step`` after it, and ``e_step`` on the clean embedding of all samples.
    Trainable parts are parameters of the module. Full-data work runs without gradients, in
    float64 where it sums.
    """

    #: Whether the first epochs keep the initial labels as hard targets.
    warm_up = False

    #: Whether they do so now; set by the loop.
    warming = False

    #: Whether ``after_step`` does anything: it costs a clean pass of the batch.
    online = False

    #: Labels (n,) of the samples that the last E-step has seen: the argmax of their posteriors.
    labels: Tensor

    #: Weight of the mean squared error over features; their number makes it the sum over them.
    reconstruction_weight = 1.0

    @abstractmethod
    def start(self, z: Tensor, labels: Tensor) -> None:
        """Take over the initial clustering: embeddings (n, p) and labels (n,), int64."""

    @abstractmethod
    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """Update targets and prototypes in closed form from all embeddings; keep the labels.

        Parameters
        ----------
        z : Tensor of shape (n, p)
            Clean embeddings of all samples, in the samples' order.
        epoch : int
            Index of the epoch that has just ended.
        labels : Tensor of shape (n,), or None
            During the warm-up, the initial labels, which the targets keep to.

        Returns
        -------
        dict
            Numbers for the history, among them "objective", the clustering loss per sample.
        """

    @abstractmethod
    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        """Clustering loss of a batch: embeddings (b, p) and the samples' indices (b,)."""

    def after_step(self, z: Tensor, index: Tensor) -> None:
        """Update prototypes from a batch that was encoded anew after the step on it.

        Called outside the warm-up.
        """

    def is_settled(self, epoch: int) -> bool:
        """Whether training may end after this epoch: not while a schedule still runs."""
        return True

    @abstractmethod
    def log_posterior(self, z: Tensor) -> Tensor:
        """Log-probabilities (n, k) of the clusters; the label is their argmax."""

    @abstractmethod
    def energy(self, z: Tensor) -> float:
        """Clustering loss per sample after an E-step that leaves the prototypes as they are."""


class JointLoss(nn.Module):
    """Reconstruction loss of a network plus the clustering loss on its embedding.

    Parameters
    ----------
    network : Network
        Autoencoder with ``encode`` and ``decode``.
    objective : Objective or None
        The clustering loss; None for pretraining.
    augmentation : callable or None
        Changes a batch at random before the network sees it.
    dtype : torch.dtype
        Type in which the network computes. Its weights are float32, and so are the losses.
    """

    def __init__(
        self,
        network: Network,
        objective: Objective | None = None,
        *,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.network = network
        self.objective = objective
        self.augmentation = augmentation
        self.dtype = dtype

    def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Reconstruction loss, weighted, and clustering loss (None in pretraining) of a batch."""
        if self.augmentation is not None:
            x = self.augmentation(x)
        if self.objective is not None and self.objective.reconstruction_weight == 0:
            with self._autocast(x.device):
                z = self.network.encode(x)
            return x.new_zeros(()), self.objective.loss(z.to(x.dtype), index)
        with self._autocast(x.device):
            z, terms = reconstruct(self.network, x)
        # The first term, the input's, has weight 1.
        (_, target, output), *hidden = terms
        reconstruction = F.mse_loss(output.to(x.dtype), target)
        for weight, target, output in hidden:
            reconstruction = reconstruction + weight * F.mse_loss(
                output.to(x.dtype), target.to(x.dtype)
            )
        if self.objective is None:
            return reconstruction, None
        clustering = self.objective.loss(z.to(x.dtype), index)
        return self.objective.reconstruction_weight * reconstruction, clustering

    def _autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """What lets the network compute in ``dtype``."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        # Inside another autocast, as fit is, torch would keep the cast weights from step to step.
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    @torch.no_grad()
    def after_step(self, x: Tensor, index: Tensor) -> None:
        """Show the batch to the objective once more, with the new weights and without noise."""
        if self.objective is None or not self.objective.online or self.objective.warming:
            return
        self.network.eval()
        z = self.network.encode(x)
        self.network.train()
        self.objective.after_step(z, index)


def reconstruction_error(network: Network, x: Tensor) -> Tensor:
    """Reconstruction loss of each sample of a batch (b,), as ``JointLoss`` weighs it."""
    _, terms = reconstruct(network, x)
    errors = [
        weight * (output - target).square().flatten(1).mean(dim=1)
        for weight, target, output in terms
    ]
    return torch.stack(errors).sum(dim=0)
