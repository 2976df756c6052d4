"""Random changes of training samples that leave their cluster as it is."""

from __future__ import annotations

from collections.abc import Callable
from math import radians
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ._validation import ImageShape

#: A function of a batch and a random stream that returns the changed batch.
Change = Callable[[Tensor, torch.Generator], Tensor]

# Largest shift as a share of the side, largest rotation, largest change of the size: of DEC with
# data augmentation (Guo et al. 2018).
_SHIFT, _ROTATION, _ZOOM = 0.1, radians(10), 0.1


def shift_rotate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift, rotate and resize each image of a batch a little, all at random.

    Shifts by up to a tenth of each side, rotations by up to 10 degrees and sizes from 0.9 to 1.1
    are drawn uniformly. What comes in from outside continues the image's edge.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
        Images.
    generator : torch.Generator
        Random stream, on the images' device.

    Returns
    -------
    Tensor of shape (n, channels, height, width)
        New images.
    """
    draws = torch.rand(4, len(x), generator=generator, device=x.device) * 2 - 1
    angle, zoom, *shift = draws
    size = 1 + _ZOOM * zoom
    cosine, sine = torch.cos(_ROTATION * angle) / size, torch.sin(_ROTATION * angle) / size
    # Coordinates go from -1 to 1 along both sides, however long they are.
    height, width = x.shape[2:]
    rows = [
        torch.stack([cosine, -sine * height / width, 2 * _SHIFT * shift[0]]),
        torch.stack([sine * width / height, cosine, 2 * _SHIFT * shift[1]]),
    ]
    grid = F.affine_grid(torch.stack(rows).permute(2, 0, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


class Augmentation:
    """What the parameter ``augment`` stands for, with a random stream of its own.

    Parameters
    ----------
    augment : "shift-rotate" or callable
        The change.
    image_shape : tuple (channels, height, width) or None
        Shape of the images. Batches of flat rows are given that shape for the change.
    seed : int
        Seed of the random stream.
    device : torch.device
        Where the batches are.
    """

    def __init__(
        self, augment: Any, image_shape: ImageShape | None, seed: int, device: torch.device
    ):
        self._change: Change = shift_rotate if isinstance(augment, str) else augment
        self._image_shape = image_shape
        self._generator = torch.Generator(device).manual_seed(seed)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """A changed copy of a batch."""
        images = x.clone()  # which a callable may write into
        if self._image_shape is not None:
            images = images.view(-1, *self._image_shape)
        changed = self._change(images, self._generator)
        if not isinstance(changed, Tensor) or changed.shape != images.shape:
            raise ValueError(
                f"augment must return a tensor of the batch's shape {tuple(images.shape)}, not "
                f"{tuple(changed.shape) if isinstance(changed, Tensor) else type(changed)}."
            )
        return changed.reshape(x.shape)


def check_augment(augment: Any, image_shape: ImageShape | None) -> None:
    """Refuse to shift and rotate what is no image."""
    if isinstance(augment, str) and image_shape is None:
        raise ValueError(
            f"augment={augment!r} needs images: X of shape (n, height, width), or "
            "image_shape=(channels, height, width) of the Autoencoder, whose module may be 'mlp'."
        )
