"""The samples as batches of standardised tensors, made when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

# Bytes of float64 input that statistics and inference look at together.
_CHUNK_BYTES = 2**21


@dataclass(frozen=True)
class Scaling:
    """One mean and one deviation for all features, in float64.

    One for all of them, so that the features keep their relative weight, as in k-means, and
    the result does not depend on the unit of the data.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, X: Any) -> Scaling:
        """Measure an (n, d) array or CSR matrix, in chunks. A deviation of zero counts as 1."""
        # Relative to the largest entry, so that no square over- or underflows.
        unit = max(_largest(_dense(X[rows])) for rows in _chunks(X)) or 1.0
        # Chunk by chunk, each with its own mean: one pass, and no digits are lost.
        count, mean, squares = 0, 0.0, 0.0
        for rows in _chunks(X):
            chunk = np.divide(_dense(X[rows]), unit, dtype=np.float64)
            part = float(chunk.mean())
            chunk -= part
            total = count + chunk.size
            shift = part - mean
            mean += shift * chunk.size / total
            squares += float(np.square(chunk, out=chunk).sum())
            squares += shift**2 * count * chunk.size / total
            count = total
        deviation = np.sqrt(squares / count)
        # Rounding leaves constant data a deviation of about eps; it is zero all the same.
        if deviation <= 1e-15 * max(abs(mean), 1e-300):
            return cls(mean * unit, 1.0)
        return cls(mean * unit, float(deviation * unit))


class Rows:
    """The rows of an (n, d) array as batches for a network.

    A batch is gathered in the array's own type, shifted and scaled in float64 and then cast:
    so the same numbers give the same batch whatever type they are stored in, and the array is
    neither copied nor changed; only data of a single chunk, 2 MB in float64, is standardised
    beforehand. Rows of a sparse matrix become dense in their batch alone. On an accelerator a
    dense array is kept on the device if it takes less than half of the free memory.

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (n, d)
        Real numbers of any type.
    scaling : Scaling
        Mean and deviation.
    input_shape : tuple
        Shape of one sample for the network: ``(d,)`` or ``(channels, height, width)``.
    device : torch.device
        Where the batches go.
    """

    def __init__(
        self, X: Any, scaling: Scaling, input_shape: tuple[int, ...], device: torch.device
    ):
        self._X = X
        self._input_shape = input_shape
        self.device = device
        # MPS has no float64: there, batches are made on the CPU.
        workshop = torch.device("cpu") if device.type == "mps" else device
        # Of one dimension: a tensor of none would not promote the batch to its own type.
        self._mean = torch.tensor([scaling.mean], dtype=torch.float64, device=workshop)
        self._deviation = torch.tensor([scaling.deviation], dtype=torch.float64, device=workshop)
        self._on_device: Tensor | None = None
        on_cuda = device.type == "cuda" and not scipy.sparse.issparse(X)
        if on_cuda and X.nbytes < torch.cuda.mem_get_info(device)[0] / 2:
            self._on_device = torch.tensor(_bool_as_uint8(X), device=device)
        self._standardised: Tensor | None = None
        if 8 * X.shape[0] * X.shape[1] <= _CHUNK_BYTES:
            (self._standardised,) = self.chunks()

    def __len__(self) -> int:
        return self._X.shape[0]

    def take(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows of an index tensor, standardised, of shape (b, *input_shape)."""
        if self._standardised is not None and dtype == torch.float32:
            return self._standardised.index_select(0, index)
        if self._on_device is not None:
            return self._standardise(self._on_device.index_select(0, index), dtype)
        return self._standardise(self._gather(index.cpu().numpy()), dtype)

    def chunks(self, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
        """All rows in order, standardised, some megabytes at a time."""
        if self._standardised is not None and dtype == torch.float32:
            # A user's network may write into its input.
            yield self._standardised.clone()
            return
        for rows in _chunks(self._X):
            if self._on_device is not None:
                yield self._standardise(self._on_device[rows], dtype)
            else:
                yield self._standardise(self._gather(rows), dtype)

    def mean(self) -> Tensor:
        """Mean of the standardised rows, of shape input_shape, in float64 on the CPU."""
        total = sum(x.cpu().sum(dim=0, dtype=torch.float64) for x in self.chunks())
        return torch.as_tensor(total) / len(self)

    def _gather(self, rows: np.ndarray | slice) -> Tensor:
        """Some rows as they are, dense. A slice is copied: the array may be read-only."""
        part = _bool_as_uint8(_dense(self._X[rows]))
        return torch.from_numpy(part.copy() if isinstance(rows, slice) else part)

    def _standardise(self, batch: Tensor, dtype: torch.dtype) -> Tensor:
        """Shift and scale a batch in float64, then cast it and give it its shape."""
        batch = batch.to(self._mean.device) - self._mean
        batch = torch.div(batch, self._deviation, out=torch.empty_like(batch, dtype=dtype))
        return batch.view(-1, *self._input_shape).to(self.device)


class Batches:
    """One epoch's batches ``(x, index)``, in an order drawn from ``order``.

    A last batch of a single row joins the one before it: batch normalisation in a user's
    network cannot train on one row.
    """

    def __init__(self, rows: Rows, batch_size: int, order: torch.Generator):
        self.rows = rows
        self.order = order
        n = len(rows)
        self._sizes = [batch_size] * (n // batch_size)
        rest = n % batch_size
        if rest == 1 and self._sizes:
            self._sizes[-1] += 1
        elif rest:
            self._sizes.append(rest)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.rows), generator=self.order).to(self.rows.device)
        for index in order.split(self._sizes):
            yield self.rows.take(index), index


def _dense(X: Any) -> np.ndarray:
    """A part of the data as an array."""
    return X.toarray() if scipy.sparse.issparse(X) else X


def _bool_as_uint8(X: np.ndarray) -> np.ndarray:
    """What torch can subtract from: of bool, 0 and 1."""
    return X.view(np.uint8) if X.dtype == bool else X


def _largest(chunk: np.ndarray) -> float:
    """Largest absolute value; in Python's numbers, because -(-128) is no int8."""
    return max(abs(float(chunk.min())), abs(float(chunk.max())))


def _chunks(X: Any) -> Iterator[slice]:
    """Slices of rows of about ``_CHUNK_BYTES`` each in float64."""
    # Of very wide data, a few rows all the same: a network takes one hardly faster than some.
    size = max(16, _CHUNK_BYTES // max(1, 8 * X.shape[1]))
    for start in range(0, X.shape[0], size):
        yield slice(start, start + size)
