"""Tables of n rows, some at a time: formulas over all samples need no second table of that size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Elements that are held at a time: 2 MB in float64, which caches hold.
_ELEMENTS = 2**18


def blocks(n: int, elements_per_row: int) -> Iterator[slice]:
    """Slices of n rows that hold about ``_ELEMENTS`` elements each."""
    size = max(1, _ELEMENTS // max(1, elements_per_row))
    for start in range(0, n, size):
        yield slice(start, start + size)


def map_rows(function: Callable[..., Tensor], *tables: Tensor) -> Tensor:
    """``function(*tables)``, for a function that makes each row from the same row of the tables."""
    n, width = tables[0].shape
    parts = list(blocks(n, width))
    if len(parts) <= 1:
        return function(*tables)
    first = function(*(table[parts[0]] for table in tables))
    out = first.new_empty(n, *first.shape[1:])
    out[parts[0]] = first
    for rows in parts[1:]:
        out[rows] = function(*(table[rows] for table in tables))
    return out


def sum_rows(function: Callable[..., Tensor], *tables: Tensor) -> Tensor:
    """``function(*tables).sum(dim=0)``, for such a function."""
    n, width = tables[0].shape
    sums = [function(*(table[rows] for table in tables)).sum(dim=0) for rows in blocks(n, width)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(dim=0)
