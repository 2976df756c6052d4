"""What the estimators accept: arrays, images, devices, random states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

ImageShape = tuple[int, int, int]

# Types that torch computes with; these others are widened once, and any further ones to float64.
_WIDENED = {"f2": np.float32, "u2": np.float32, "u4": np.int64}
_KEPT = {"f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"}


def as_rows(X: Any, image_shape: ImageShape | None) -> tuple[Any, ImageShape | None]:
    """Lay images out flat, channels first.

    Parameters
    ----------
    X : array-like
        (n, d), or images (n, h, w), (n, c, h, w) or (n, h, w, c).
    image_shape : tuple (c, h, w) or None
        What is known of the images' shape.

    Returns
    -------
    X : array-like
        Two-dimensional, or as it was where it has another number of dimensions than an image.
    image_shape : tuple (c, h, w) or None
        ``image_shape``, or what X says where it is None.
    """
    if isinstance(X, list | tuple):
        X = np.asarray(X)
    shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) == 3:
        # Images without a channel axis.
        found = (1, shape[1], shape[2])
        if image_shape is not None and found != image_shape:
            raise ValueError(
                f"X has shape {shape}, which makes images of shape {found}, "
                f"but image_shape={image_shape} (channels, height, width)."
            )
        return np.asarray(X).reshape(shape[0], shape[1] * shape[2]), found
    if len(shape) == 4:
        if image_shape is None:
            raise ValueError(
                f"X has shape {shape}: with four dimensions it is not known which one is "
                "the channels. Give the images' shape as (channels, height, width), by "
                "Autoencoder(image_shape=...)."
            )
        channels, height, width = image_shape
        first = shape[1:] == image_shape
        last = shape[1:] == (height, width, channels)
        if first == last:
            raise ValueError(
                f"X has shape {shape}, which fits image_shape={image_shape} (channels, "
                f"height, width) {'both' if first else 'neither'} with channels first "
                f"{'and' if first else 'nor'} with channels last. Reshape X to (n, d) in the "
                "order channels, height, width."
            )
        X = np.asarray(X)
        X = X if first else X.transpose(0, 3, 1, 2)
        return X.reshape(shape[0], channels * height * width), image_shape
    return X, image_shape


def check_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Any:
    """Validate a two-dimensional X; it keeps its type, unless torch cannot compute with it.

    Sparse matrices become CSR, with every entry stored once.
    """
    X = validate_data(estimator, X, reset=reset, order="C", accept_sparse="csr")
    if scipy.sparse.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    if X.dtype.str[1:] not in _KEPT:
        X = X.astype(_WIDENED.get(X.dtype.str[1:], np.float64))
    return X if X.dtype.isnative else X.astype(X.dtype.newbyteorder("="))


def output_dtype(X: Any) -> torch.dtype:
    """Type in which X is encoded for the user: that of X where it is exact in it."""
    return torch.float64 if X.dtype.str[1:] in ("f8", "i4", "i8") else torch.float32


def check_device(device: str | torch.device) -> torch.device:
    """The torch device a parameter names; "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(
            f"device={device!r} is not known to torch. Use 'auto', 'cpu', 'cuda' or 'mps'."
        ) from None
    available = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if found.type not in available:
        raise ValueError(f"device={device!r} is not supported. Use 'auto', 'cpu', 'cuda' or 'mps'.")
    if (found.index or 0) >= available[found.type]:
        raise ValueError(
            f"device={device!r} was asked for, but torch finds no such device on this machine. "
            "Use device='auto' or device='cpu'."
        )
    return found


def draw_seeds(random_state: Any, n_seeds: int) -> list[int]:
    """Independent seeds. None draws from the system, not from numpy's global generator."""
    if random_state is None:
        random_state = np.random.RandomState()
    return check_random_state(random_state).randint(2**31 - 1, size=n_seeds).tolist()


def n_distinct_rows(X: Any, enough: int) -> int:
    """Number of distinct rows, counted no further than ``enough``."""
    distinct: set[bytes] = set()
    is_sparse = scipy.sparse.issparse(X)
    for i in range(X.shape[0]):
        row = X[[i]].toarray() if is_sparse else X[i]
        # Adding 0 makes -0.0 and 0.0 the same bytes.
        distinct.add((row + 0).tobytes())
        if len(distinct) >= enough:
            break
    return len(distinct)


@contextmanager
def fitting(estimator: BaseEstimator) -> Iterator[None]:
    """What every fit runs in.

    Modes of torch that the caller is in (no gradients, autocast) do not reach training. And if the
    fit ends by any exception, nothing on the estimator looks fitted.
    """
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            yield
    except BaseException:
        for name in [name for name in vars(estimator) if name.endswith("_")]:
            delattr(estimator, name)
        raise
