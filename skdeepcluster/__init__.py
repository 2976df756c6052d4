"""Deep clustering with the interface of scikit-learn's KMeans."""

from ._version import __version__
from .autoencoder import Autoencoder
from .dcn import DCN
from .deep_kmeans import DeepKMeans, annealing_schedule
from .depict import DEPICT
from .idec import IDEC
from .metrics import clustering_accuracy, input_silhouette, neighbor_agreement
from .mi_adm import MIADM
from .model_selection import SingleFit, scan_n_clusters
from .sr_kmeans import SRKMeans

__all__ = [
    "DCN",
    "DEPICT",
    "IDEC",
    "MIADM",
    "Autoencoder",
    "DeepKMeans",
    "SRKMeans",
    "SingleFit",
    "__version__",
    "annealing_schedule",
    "clustering_accuracy",
    "input_silhouette",
    "neighbor_agreement",
    "scan_n_clusters",
]
