"""Results on disk that are computed once, also if several processes want them at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
from sklearn.utils.validation import check_memory

try:
    import fcntl
except ImportError:  # Windows: two processes may compute the same result.
    fcntl = None  # type: ignore[assignment]


def remembered(memory: Any, key: Any, compute: Callable[[], Any]) -> Any:
    """Result of ``compute``, from the cache if it has been computed for an equal key.

    Parameters
    ----------
    memory : str, joblib.Memory or None
        The cache: a folder, or what scikit-learn takes elsewhere. None has nothing and keeps
        nothing.
    key : object
        What the result depends on: arrays and plain values.
    compute : callable
        Makes the result.

    Returns
    -------
    object
        The result.
    """
    memory = check_memory(memory)
    digest = joblib.hash(key)
    with _one_at_a_time(memory, digest):
        return memory.cache(_result, ignore=["compute"])(digest, compute)


def _result(digest: str, compute: Callable[[], Any]) -> Any:
    """What joblib keeps, by the digest alone."""
    return compute()


@contextlib.contextmanager
def _one_at_a_time(memory: Any, digest: str) -> Iterator[None]:
    """Hold a lock of this key, which the system lifts should the process die."""
    location = getattr(memory, "location", None)
    if location is None or fcntl is None:
        yield
        return
    folder = Path(location) / "skdeepcluster-locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / digest).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
