"""What MI-ADM and DEPICT share: a logistic posterior on the embedding, trained towards targets."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._blocks import sum_rows
from .assignments import (
    covariance,
    label_means,
    log_logistic,
    logistic_form,
    mean_row,
    reseed_empty,
    squared_distances,
    weighted_means,
    widen,
)
from .base import DeepClusterer, PosteriorMixin
from .information import mutual_information
from .objective import Objective


class LogisticObjective(Objective):
    r"""Cross-entropy of the posterior :math:`p_{ik} = \mathrm{softmax}_k(\theta_k^\top z_i + b_k)`.

    Targets are a function of the posteriors of all samples, made anew after every epoch, and
    constants in between.

    Parameters
    ----------
    coef : Tensor of shape (k, p)
        Weights :math:`\theta`.
    intercept : Tensor of shape (k,)
        Biases b.
    """

    warm_up = True

    def __init__(self, coef: Tensor, intercept: Tensor):
        super().__init__()
        self.coef = nn.Parameter(coef)
        self.intercept = nn.Parameter(intercept)

    def start(self, z: Tensor, labels: Tensor) -> None:
        """Take a soft posterior whose labels are those of the nearest cluster mean."""
        means = label_means(z, labels, fallback=mean_row(z).repeat(len(self.coef), 1))
        coef, intercept = _soft_posterior(z, means, labels)
        self.coef.data.copy_(coef)
        self.intercept.data.copy_(intercept)
        self._targets = F.one_hot(labels, len(self.coef)).to(z.dtype)

    def e_step(self, z: Tensor, epoch: int, labels: Tensor | None = None) -> dict[str, float]:
        """Targets from the posteriors of all samples."""
        log_p = self.log_posterior(z)
        self.labels = log_p.argmax(dim=1)
        targets = self._target(log_p)
        numbers = {
            "objective": self._value(log_p, targets),
            "mutual_information": float(mutual_information(log_p.exp())),
        }
        if labels is None:
            self._set_targets(targets, log_p)
        return numbers

    def loss(self, z: Tensor, index: Tensor) -> Tensor:
        """Mean cross-entropy of the batch, from its targets to its posteriors."""
        log_p = torch.log_softmax(z @ self.coef.T + self.intercept, dim=1)
        return -(self._targets[index] * log_p).sum(dim=1).mean()

    @torch.no_grad()
    def log_posterior(self, z: Tensor) -> Tensor:
        r"""Logarithm of :math:`\mathrm{softmax}_k(\theta_k^\top z_i + b_k)`, in float64."""
        return log_logistic(z, self.coef, self.intercept)

    def energy(self, z: Tensor) -> float:
        """The method's objective at the targets that the posteriors of z imply."""
        log_p = self.log_posterior(z)
        return self._value(log_p, self._target(log_p))

    def _set_targets(self, targets: Tensor, log_p: Tensor) -> None:
        """Keep the targets for the next epoch."""
        self._targets = targets.float()

    @abstractmethod
    def _target(self, log_p: Tensor) -> Tensor:
        """Targets (n, k) of the posteriors of all samples."""

    @abstractmethod
    def _value(self, log_p: Tensor, targets: Tensor) -> float:
        """The method's objective, without reconstruction."""


class LogisticClusterer(PosteriorMixin, DeepClusterer):
    """A clusterer with a logistic posterior; a method adds its objective and parameters."""

    _objective: ClassVar[type[LogisticObjective]]

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The parameters of the objective."""

    def _start(self, z: Tensor, labels: Tensor | None, seed: int, max_epochs: int) -> Objective:
        coef, intercept = z.new_zeros(self.n_clusters, z.shape[1]), z.new_zeros(self.n_clusters)
        objective = self._objective(coef, intercept, **self._options())
        objective.start(z, cast(Tensor, labels))
        return objective

    def _keep(self, objective: Any, z: Tensor) -> int:
        coef, intercept = (t.detach().cpu().double() for t in (objective.coef, objective.intercept))
        # Parameters may be set anew after the fit.
        self._fitted_options = self._options()
        n_reseeded = 0
        posterior = log_logistic(z, coef, intercept).exp_()
        overall = mean_row(z).repeat(self.n_clusters, 1)
        centers = weighted_means(z, posterior, fallback=overall)
        sizes = torch.bincount(posterior.argmax(dim=1), minlength=self.n_clusters)
        if sizes.min() == 0:
            # A hyperplane cannot be moved to a sample without others that follow it: where a
            # cluster was lost, the nearest prototype decides.
            n_reseeded = int((sizes == 0).sum())
            prototypes, _ = reseed_empty(z, centers)
            nearest = squared_distances(z, prototypes).argmin(dim=1)
            coef, intercept = _soft_posterior(z, prototypes, nearest)
            posterior = log_logistic(z, coef, intercept).exp_()
            centers = weighted_means(z, posterior, fallback=overall)
        self.coef_, self.intercept_ = coef.numpy(), intercept.numpy()
        self.cluster_centers_ = centers.numpy()
        return n_reseeded

    def _fitted_objective(self) -> LogisticObjective:
        coef, intercept = torch.tensor(self.coef_), torch.tensor(self.intercept_)
        return self._objective(coef, intercept, **self._fitted_options)


def _soft_posterior(z: Tensor, prototypes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases by which the nearest prototype is the most probable, but not certain.

    The temperature is twice the mean squared distance of a sample to its own prototype, and a
    fifth of that to the overall mean at least: sharper, the weights would be larger than the steps
    of training can change.
    """

    def scatter(z: Tensor, labels: Tensor) -> Tensor:
        return (widen(z) - prototypes[labels]).square().sum(dim=1)

    within = float(sum_rows(scatter, z, labels)) / len(z)
    total = float(covariance(z).trace())
    return logistic_form(prototypes, 2 * max(within, total / 10) or 1.0)
