"""The docstrings say what the signatures say, and all methods say it in the same words."""

import inspect
import re

import pytest

from skdeepcluster import Autoencoder

from .conftest import METHODS, small

SHARED = {
    "n_clusters",
    "init",
    "n_init",
    "tol",
    "batch_size",
    "lr",
    "precision",
    "compile",
    "device",
    "memory",
    "callbacks",
    "verbose",
    "random_state",
}


def section(cls, title):
    """Entries of a section of a numpydoc docstring, by name."""
    text = inspect.cleandoc(cls.__doc__)
    body = re.search(rf"^{title}\n-+\n(.*?)(?=^[A-Z][^\n]*\n---|\Z)", text, re.M | re.S).group(1)
    entries = re.split(r"^(?=\w[\w, ]* : )", body, flags=re.M)
    return {entry.split(" : ")[0]: entry.strip() for entry in entries if " : " in entry}


@pytest.mark.parametrize("cls", [Autoencoder, *METHODS])
def test_parameters_are_documented_in_order_with_their_defaults(cls):
    entries = section(cls, "Parameters")
    signature = inspect.signature(cls).parameters
    assert list(entries) == list(signature)
    for name, parameter in signature.items():
        told = re.search(r"default=(.*)", entries[name]).group(1)
        default = parameter.default
        if isinstance(default, str):
            assert told == f'"{default}"', name
        elif isinstance(default, float):
            assert float(told) == default, name
        else:
            assert told == str(default), name


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_parameters_are_told_in_the_same_words(name):
    assert len({section(cls, "Parameters")[name] for cls in METHODS}) == 1


@pytest.mark.parametrize("cls", METHODS)
def test_fitted_attributes_are_documented(cls, blobs):

    model = small(cls).fit(blobs[0])
    fitted = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    told = {name for entry in section(cls, "Attributes") for name in entry.split(", ")}
    # Only where X has column names.
    assert fitted == told - {"feature_names_in_"}
