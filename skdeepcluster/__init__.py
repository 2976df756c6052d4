"""Deep clustering with the interface of scikit-learn's KMeans."""

from ._version import __version__
from .autoencoder import Autoencoder
from .metrics import clustering_accuracy
from .sr_kmeans import SRKMeans

__all__ = ["Autoencoder", "SRKMeans", "__version__", "clustering_accuracy"]
