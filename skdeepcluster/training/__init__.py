"""The training loop: skorch's net with a batch loop at bare-torch pace. No method is known here."""

from .inference import encode, mean_reconstruction_error
from .net import Trainer
from .phase import ClusteringPhase
from .precision import training_dtype
from .rows import Rows, Scaling

__all__ = [
    "ClusteringPhase",
    "Rows",
    "Scaling",
    "Trainer",
    "encode",
    "mean_reconstruction_error",
    "training_dtype",
]
