"""Autoencoder: a scikit-learn transformer that pretrains a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor, nn
from torch.optim import Optimizer

from ._memory import remembered
from ._validation import (
    ImageShape,
    as_rows,
    check_device,
    check_rows,
    draw_seeds,
    fitting,
    output_dtype,
)
from ._version import __version__
from .augment import Augmentation, Change, check_augment
from .networks import MirroredAutoencoder, Network, build, conv_autoencoder, mlp_autoencoder
from .objective import JointLoss
from .training import (
    Rows,
    Scaling,
    Trainer,
    encode,
    mean_reconstruction_error,
    training_dtype,
)

#: Constraints of the parameters that concern training, shared with the clusterers.
TRAINING_CONSTRAINTS: dict[str, list[Any]] = {
    "max_epochs": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "lr": [Interval(Real, 0, None, closed="neither")],
    "optimizer": [str, callable],
    "augment": [StrOptions({"shift-rotate"}), callable, None],
    "precision": [StrOptions({"float32", "bfloat16", "auto"})],
    "device": [str, torch.device],
    "compile": ["boolean"],
    "memory": [str, HasMethods(["cache"]), None],
    "callbacks": [list, tuple, None],
    "verbose": ["verbose"],
    "random_state": ["random_state"],
}

# Optimiser steps of pretraining that max_epochs="auto" aims at, and the epochs it keeps to.
_AUTO_STEPS = 6_000
_AUTO_EPOCHS = (20, 400)

# How often a dead network is trained anew, each time with a tenth of the learning rate.
_RESTARTS = 2

# Mean derivative of the embedding's tanh, between 0 and 1, below which next to nothing can change
# the embedding any more. It is .1 to .7 where training goes well.
_SATURATED = 0.01


class Autoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Nonlinear dimension reduction by a neural network that learns to rebuild its input.

    An encoder maps a sample x to an embedding z of ``n_components`` numbers, a decoder maps it
    back to :math:`\hat x`, and training minimises the reconstruction loss

    .. math:: R = \frac1N \sum_i \frac{1}{d} \|x_i - \hat x_i\|^2
              + w \sum_{l=1}^{L-1} \frac1N \sum_i \frac{1}{|z^l|} \|z_i^l - \hat z_i^l\|^2,

    where :math:`z^l` are the L-1 hidden layers and w is ``layer_weight`` (Jabi et al. 2021,
    section 5.1). The network sees the data minus its mean over its standard deviation, one number
    each for all features, so the features keep their relative weight; losses are in those units.

    This is what the clusterers of this package train first. On its own it is a scikit-learn
    transformer: ``make_pipeline(Autoencoder(), KMeans(10))`` is the baseline "AE + k-means".

    Parameters
    ----------
    n_components : int, default=20
        Size of the embedding. Ignored where ``module`` is a network. SR-K-means, DEPICT and DKM
        use the number of clusters. But SR-K-means drives every sample to a corner of the cube
        [-1, 1]^n_components: with few corners, clusters head for the same one and merge (measured
        with 10 clusters: often with 10 components, now and then with 20, never with 50).
    hidden_layer_sizes : "auto" or sequence of int, default="auto"
        Widths of the layers between input and embedding, for ``module="mlp"``. DKM, DCN and IDEC
        use ``(500, 500, 2000)``; "auto" is that for 250 features or more, and scaled down for
        fewer: ``(h, h, 4 * h)`` with h twice the number of features, at least 32.
    module : {"auto", "mlp", "conv"}, nn.Module or callable, default="auto"
        The network. "mlp" is fully connected with ReLU, "conv" the convolutional network of
        SR-K-means and DEPICT; "auto" is "conv" for images (three-dimensional X, or
        ``image_shape`` given) and "mlp" otherwise. A module must have ``encode(x)``, from a
        batch of the input's shape to (batch, size of the embedding), and ``decode(z)`` back; it
        is copied, keeps its weights, and makes its own noise. A callable
        ``f(input_shape, n_components)`` must return such a module; input_shape is
        ``(n_features,)``, or (channels, height, width) for images. A module whose embedding is
        confined to [-1, 1] says so with an attribute ``bounded = True``. Random layers such as
        ``torch.nn.Dropout`` draw from torch's global generator.
    image_shape : tuple (channels, height, width) or None, default=None
        Shape of the images in X, where X does not have it. Pixels of flat rows are ordered like
        this tuple.
    embedding_activation : {"tanh", "identity"}, default="tanh"
        Whether the embedding is confined to [-1, 1] (SR-K-means, DEPICT, MI-ADM) or not (DKM, DCN).
    noise : "auto" or float, default="auto"
        Share of the entries of each layer's input, but the last's, that are set to 0 in training
        (denoising). "auto" is 0.1, as in SR-K-means and DEPICT, and 0 for a module of your own;
        DKM, DCN and IDEC train without.
    layer_weight : "auto" or float, default="auto"
        The w above. "auto" is 0.1 for "conv", as in the official code (the paper's text has 1),
        and 0 otherwise.
    conv_maps : sequence of int, default=(50, 50)
        Number of feature maps of each convolution, for ``module="conv"``.
    conv_kernel_sizes : sequence of int, default=(4, 5)
        Sides of the kernels. A kernel larger than its padded input shrinks.
    conv_strides : sequence of int, default=(2, 2)
        Strides.
    conv_paddings : sequence of int, default=(0, 2)
        Paddings. With these defaults the network is the papers' for MNIST and USPS; they used
        (2, 2) for CMU-PIE and FRGC, and kernels (5, 4) with paddings (2, 0) for YTF.
    max_epochs : "auto" or int, default="auto"
        Passes over the data. "auto" aims at 6,000 optimiser steps, in 20 to 400 epochs.
    batch_size : "auto" or int, default="auto"
        Rows a step. "auto" is a tenth of the data, from 32 to 256.
    lr : float, default=2e-3
        Learning rate; with a schedule, the highest.
    lr_schedule : {"one-cycle", "constant"}, default="one-cycle"
        "one-cycle" starts at a 25th of ``lr``, reaches it after 30 % of the steps, and falls to
        almost 0 (a cosine): the network does not saturate at the start, and settles at the end.
    optimizer : str or callable, default="Adam"
        Name in ``torch.optim`` or a class; options by ``functools.partial``. Adam does not mind
        the scale of the loss; plain SGD does.
    augment : {"shift-rotate"}, callable or None, default=None
        Random changes of the training samples that the network is to learn with. "shift-rotate"
        is for images: shifts by up to a tenth of the sides, rotations by up to 10 degrees, sizes
        from 0.9 to 1.1. Flat rows need ``image_shape``, and may go through an "mlp" all the same. A
        callable ``f(batch, generator)`` gets a standardised batch, as images if there are any,
        and a ``torch.Generator`` on its device, and returns a tensor of the same shape. Changes
        cost a pass over the batch each, and more epochs are needed.
    precision : {"float32", "bfloat16", "auto"}, default="float32"
        Type in which the network computes in training. "bfloat16" has 3 digits, and is faster on
        CPUs and GPUs with instructions for it; weights, targets, losses and predictions stay
        float32 or float64. "auto" is "bfloat16" on such a device, but on a CPU neither for small
        networks nor for convolutions, which do not gain by it.
    device : str or torch.device, default="auto"
        "auto" is CUDA if there is one, else the CPU; "mps" by name.
    compile : bool, default=False
        Whether to let ``torch.compile`` make kernels of the training step: a minute at the start,
        and worth it on a GPU. It needs a C++ compiler.
    memory : str, object with a ``cache`` method, or None, default=None
        Where to keep trained networks: a folder, or a ``joblib.Memory``. The same data, parameters,
        seed, kind of device and versions then train once, also in a grid search with several
        jobs. Only a built-in network with an int as random_state and without callbacks is kept.
    callbacks : list of skorch callbacks or None, default=None
        For example ``skorch.callbacks.LRScheduler`` or
        ``EarlyStopping(monitor="train_loss")``.
    verbose : int, default=0
        Whether to print a table row per epoch.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial weights, the minibatches and the noise. The same int gives the same
        network, bit by bit, on the same CPU with the same number of threads. No global random
        state is used or changed: None draws a seed from the operating system.

    Attributes
    ----------
    module_ : nn.Module
        The trained network. Its inputs are standardised: see ``mean_`` and ``scale_``.
    mean_, scale_ : float
        Mean and standard deviation of the training data, over all entries.
    image_shape_ : tuple or None
        (channels, height, width) of the images, None for rows.
    reconstruction_error_ : float
        Reconstruction loss R on the training data at the end, without noise. Where it is the
        squared error alone (``layer_weight=0``), it is a share of the variance of all entries.
    history_ : list of dict
        Per epoch: ``phase`` ("pretraining"), epoch, train_loss, train_loss_best (whether it is the
        lowest so far), dur (seconds).
    n_iter_ : int
        Number of epochs.
    stop_reason_ : {"max_epochs", "callback"}
        Why training ended.
    n_features_in_ : int
        Number of features; channels * height * width for images.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where X has string names.

    See Also
    --------
    SRKMeans : Clusters the embedding and trains it for that.
    sklearn.decomposition.PCA : The linear case.

    Notes
    -----
    A network can die in training, most often from a large learning rate: every sample gets the
    same embedding, or the tanh saturates, and the embedding is a code of some bits that training
    cannot change any more. It is then trained anew from other initial weights (a module of your
    own from its own) with a tenth of the learning rate, twice if need be. If all samples have the
    same embedding after that, an error is raised.

    References
    ----------
    M. Jabi, M. Pedersoli, A. Mitiche, I. Ben Ayed, "Deep clustering: On the link between
    discriminative models and K-means", IEEE TPAMI 43(6), 2021.

    M. Moradi Fard, T. Thonet, E. Gaussier, "Deep k-Means: Jointly clustering with k-Means and
    learning representations", Pattern Recognition Letters 138, 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skdeepcluster import Autoencoder
    >>> X = load_iris().data
    >>> autoencoder = Autoencoder(n_components=2, max_epochs=20, random_state=0).fit(X)
    >>> Z = autoencoder.transform(X)
    >>> Z.shape
    (150, 2)
    >>> autoencoder.inverse_transform(Z).shape
    (150, 4)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "hidden_layer_sizes": ["array-like", StrOptions({"auto"})],
        "module": [StrOptions({"auto", "mlp", "conv"}), nn.Module, callable],
        "image_shape": ["array-like", None],
        "embedding_activation": [StrOptions({"tanh", "identity"})],
        "noise": [Interval(Real, 0, 1, closed="left"), StrOptions({"auto"})],
        "layer_weight": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "conv_maps": ["array-like"],
        "conv_kernel_sizes": ["array-like"],
        "conv_strides": ["array-like"],
        "conv_paddings": ["array-like"],
        "lr_schedule": [StrOptions({"one-cycle", "constant"})],
        **TRAINING_CONSTRAINTS,
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        hidden_layer_sizes: str | Sequence[int] = "auto",
        module: str | nn.Module | Callable[..., nn.Module] = "auto",
        image_shape: Sequence[int] | None = None,
        embedding_activation: str = "tanh",
        noise: str | float = "auto",
        layer_weight: str | float = "auto",
        conv_maps: Sequence[int] = (50, 50),
        conv_kernel_sizes: Sequence[int] = (4, 5),
        conv_strides: Sequence[int] = (2, 2),
        conv_paddings: Sequence[int] = (0, 2),
        max_epochs: str | int = "auto",
        batch_size: str | int = "auto",
        lr: float = 2e-3,
        lr_schedule: str = "one-cycle",
        optimizer: str | Callable[..., torch.optim.Optimizer] = "Adam",
        augment: str | Change | None = None,
        precision: str = "float32",
        device: str | torch.device = "auto",
        compile: bool = False,
        memory: Any = None,
        callbacks: Sequence[Any] | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.module = module
        self.image_shape = image_shape
        self.embedding_activation = embedding_activation
        self.noise = noise
        self.layer_weight = layer_weight
        self.conv_maps = conv_maps
        self.conv_kernel_sizes = conv_kernel_sizes
        self.conv_strides = conv_strides
        self.conv_paddings = conv_paddings
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.lr_schedule = lr_schedule
        self.optimizer = optimizer
        self.augment = augment
        self.precision = precision
        self.device = device
        self.compile = compile
        self.memory = memory
        self.callbacks = callbacks
        self.verbose = verbose
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Autoencoder:
        """Train the network.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Numbers of any type; a sparse matrix, of which only a batch at a time is made dense;
            images as (n, height, width), or four-dimensional with ``image_shape`` given, channels
            first or last. Not changed.
        y : Ignored
            Present for scikit-learn's sake.

        Returns
        -------
        Autoencoder
            The fitted transformer itself.

        Raises
        ------
        ValueError
            If X or a parameter is unfit, if the loss is not finite, or if the network stays dead.
        """
        with fitting(self):
            device = check_device(self.device)
            X, image_shape = self._check_fit(X, self)
            self._fit(X, image_shape, device)
            self.reconstruction_error_ = self._reconstruction_error(X)
            return self

    def transform(self, X: Any) -> np.ndarray:
        """Embed samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Embeddings: float64 for float64 and for integers of 32 bits or more, else float32. The
            network is evaluated in that precision.
        """
        check_is_fitted(self)
        X = self._check_rows(X)
        return self._encode(X).numpy()

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Decode embeddings into the units of the data.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Embeddings.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Reconstructions, flat also for images; float32 for float32 input, else float64.
        """
        check_is_fitted(self)
        Z = check_array(Z, dtype=[np.float64, np.float32], input_name="Z")
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z has {Z.shape[1]} columns, but the embedding has {self._n_features_out}."
            )
        # Rows of the output that are made together: 2 MB in float64.
        chunk = max(1, 2**18 // self.n_features_in_)
        with self._network_in(torch.float64 if Z.dtype == np.float64 else torch.float32) as network:
            decoded = [
                network.decode(
                    torch.tensor(
                        Z[i : i + chunk], dtype=_dtype_of(network), device=_device_of(network)
                    )
                )
                .flatten(1)
                .cpu()
                .numpy()
                for i in range(0, len(Z), chunk)
            ]
        X = np.concatenate(decoded)
        return X * X.dtype.type(self.scale_) + X.dtype.type(self.mean_)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the reconstruction loss on X, in standardised units; higher is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or images
            Samples.
        y : Ignored
            Present for scikit-learn's sake.

        Returns
        -------
        float
            Minus the mean of the loss R over X, without noise.
        """
        check_is_fitted(self)
        return -self._reconstruction_error(self._check_rows(X))

    def _check_fit(self, X: Any, estimator: BaseEstimator) -> tuple[np.ndarray, ImageShape | None]:
        """Validate X, for the estimator that was called, and the parameters that go with it."""
        image_shape: Any = None if self.image_shape is None else tuple(self.image_shape)
        if image_shape is not None and (
            len(image_shape) != 3
            or not all(isinstance(s, Integral) and int(s) > 0 for s in image_shape)
        ):
            raise ValueError(
                f"image_shape={self.image_shape!r} must be three positive integers: "
                "(channels, height, width)."
            )
        if image_shape is not None:
            image_shape = tuple(int(side) for side in image_shape)
        X, image_shape = as_rows(X, image_shape)
        X = check_rows(estimator, X, reset=True)
        if image_shape is not None and np.prod(image_shape) != X.shape[1]:
            raise ValueError(
                f"image_shape={image_shape} (channels, height, width) makes "
                f"{np.prod(image_shape)} features, but X has {X.shape[1]}."
            )
        if self.module == "conv" and image_shape is None:
            raise ValueError(
                "module='conv' needs images: X of shape (n, height, width), or "
                "image_shape=(channels, height, width)."
            )
        check_augment(self.augment, image_shape)
        check_optimizer(self.optimizer)
        self._architecture = self._architecture_for(X.shape[1], image_shape)
        return X, image_shape

    def _check_rows(self, X: Any) -> np.ndarray:
        """Validate X against the training data's features."""
        return check_rows(self, self._as_rows(X), reset=False)

    def _as_rows(self, X: Any) -> Any:
        """Lay images out as the training data was."""
        if self.image_shape_ is None and getattr(X, "ndim", 2) == 3:
            # A network for rows takes the images those rows once were.
            return np.asarray(X).reshape(len(X), X.shape[1] * X.shape[2])
        return as_rows(X, self.image_shape_)[0]

    def _fit(
        self,
        X: np.ndarray,
        image_shape: ImageShape | None,
        device: torch.device,
        *,
        untrained: bool = False,
    ) -> None:
        """Train on validated rows, or only get ready for training."""
        scaling = Scaling.of(X)
        self.mean_, self.scale_ = scaling.mean, scaling.deviation
        self.image_shape_ = image_shape
        rows = self._rows(X, device)
        if untrained:
            self._initialise(rows, draw_seeds(self.random_state, 1)[0])
            self._close("max_epochs", [])
            return
        key = self._cache_key(device)
        if key is None:
            self._train_until_alive(rows)
            return

        def compute() -> dict[str, Any]:
            self._train_until_alive(rows)
            return {
                "weights": _arrays(self.module_),
                "history": self.history_,
                "stop_reason": self.stop_reason_,
            }

        state = remembered(self.memory, (X, key), compute)
        self._open(state["weights"])
        self._check_network(rows)
        self._close(state["stop_reason"], state["history"])

    def _train_until_alive(self, rows: Rows) -> None:
        """Train, again and slower if the network dies or saturates."""
        lr = self.lr
        for seeds in np.reshape(draw_seeds(self.random_state, 3 * (1 + _RESTARTS)), (-1, 3)):
            weight_seed, order_seed, noise_seed = seeds.tolist()
            self._initialise(rows, weight_seed)
            self._train(rows, lr, order_seed, noise_seed)
            if not (self._is_dead(rows) or self._is_saturated(rows)):
                return
            lr /= 10
        if self._is_dead(rows):
            raise ValueError(
                f"The Autoencoder died in training with lr={self.lr:g}, and with a tenth and a "
                "hundredth of it: all samples have the same embedding. Use a smaller lr of the "
                "Autoencoder, or another network."
            )

    def _initialise(self, rows: Rows, weight_seed: int) -> None:
        """Make a new network."""
        built_in = self._architecture[0] in ("mlp", "conv")
        self.module_ = build(self._make_network, weight_seed, glorot=built_in)
        self._check_network(rows)
        if built_in and isinstance(self.module_, MirroredAutoencoder):
            self.module_.output_bias.data.copy_(rows.mean())

    def _train(self, rows: Rows, lr: float, order_seed: int, noise_seed: int) -> None:
        """Train the new network."""
        seed_noise(self.module_, noise_seed, rows.device)
        # A stream of its own, from the same seed.
        augmentation = self._augmentation(self.augment, noise_seed, rows.device)
        batch_size = auto_batch_size(self.batch_size, len(rows))
        trainer = Trainer(
            JointLoss(
                self.module_,
                augmentation=augmentation,
                dtype=training_dtype(self.precision, rows.device, self.module_),
            ),
            optimizer=self.optimizer,
            lr=lr,
            batch_size=batch_size,
            order=torch.Generator().manual_seed(order_seed),
            device=rows.device,
            compile=self.compile,
            callbacks=self.callbacks,
            one_cycle=self.lr_schedule == "one-cycle",
            verbose=self.verbose,
        )
        max_epochs = auto_epochs(
            self.max_epochs, len(rows), batch_size, steps=_AUTO_STEPS, bounds=_AUTO_EPOCHS
        )
        self._close(trainer.train(rows, max_epochs), trainer.rows_of_history())

    def _close(self, stop_reason: str, history: list[dict[str, float]]) -> None:
        """Set what tells how training went."""
        self.module_.eval()
        self.stop_reason_ = stop_reason
        self.history_ = [{"phase": "pretraining", **row} for row in history]
        self.n_iter_ = len(history)

    def _cache_key(self, device: torch.device) -> Any:
        """What pretraining depends on beside the data, or None where that cannot be told."""
        optimizer = _name_of(self.optimizer)
        is_plain = (
            self.memory is not None
            and self._architecture[0] in ("mlp", "conv")
            and isinstance(self.random_state, Integral)
            and not self.callbacks
            and not callable(self.augment)
            and optimizer is not None
        )
        if not is_plain:
            return None
        kind, options = self._architecture
        return (
            __version__,
            torch.__version__,
            kind,
            sorted((name, str(value)) for name, value in options.items()),
            str((self.max_epochs, self.batch_size, float(self.lr), self.lr_schedule, optimizer)),
            self.augment,
            device.type,
            # "auto" may stand for another type on another machine.
            str(training_dtype(self.precision, device, build(self._make_network))),
            self.compile,
            int(cast(int, self.random_state)),
        )

    def _architecture_for(
        self, n_features: int, image_shape: ImageShape | None
    ) -> tuple[str, dict[str, Any]]:
        """Kind of the network and the arguments it is built from, as plain values."""
        kind = self.module
        if kind == "auto":
            kind = "mlp" if image_shape is None else "conv"
        if not isinstance(kind, str):
            if self.noise not in ("auto", 0) or self.layer_weight not in ("auto", 0):
                raise ValueError(
                    f"noise={self.noise!r} and layer_weight={self.layer_weight!r} are for the "
                    "built-in networks: a module of your own makes its own noise. Leave both at "
                    "'auto'."
                )
            if isinstance(kind, nn.Module):
                return "module", {"module": kind}
            input_shape = (n_features,) if image_shape is None else image_shape
            return "callable", {
                "make": kind,
                "input_shape": input_shape,
                "n_components": self.n_components,
            }
        options: dict[str, Any] = {
            "n_components": self.n_components,
            "bounded": self.embedding_activation == "tanh",
            "noise": 0.1 if self.noise == "auto" else float(self.noise),
            "layer_weight": self.layer_weight,
        }
        if self.layer_weight == "auto":
            options["layer_weight"] = 0.1 if kind == "conv" else 0.0
        if kind == "mlp":
            sizes = self.hidden_layer_sizes
            if isinstance(sizes, str):
                width = min(max(32, 2 * n_features), 500)
                sizes = (width, width, 4 * width)
            sizes = _positive_integers("hidden_layer_sizes", sizes, least=1)
            return kind, {"n_features": n_features, "hidden_layer_sizes": sizes, **options}
        layers = {
            "maps": _positive_integers("conv_maps", self.conv_maps, least=1),
            "kernel_sizes": _positive_integers("conv_kernel_sizes", self.conv_kernel_sizes, 1),
            "strides": _positive_integers("conv_strides", self.conv_strides, least=1),
            "paddings": _positive_integers("conv_paddings", self.conv_paddings, least=0),
        }
        if len({len(values) for values in layers.values()}) != 1 or not layers["maps"]:
            raise ValueError(
                "conv_maps, conv_kernel_sizes, conv_strides and conv_paddings must have one entry "
                f"per convolution, and one at least, but are {tuple(layers.values())}."
            )
        return kind, {"image_shape": image_shape, **layers, **options}

    def _is_bounded(self) -> bool:
        """Whether the embedding lies in [-1, 1]; a network of the user's must be built to tell."""
        kind, options = self._architecture
        if kind in ("mlp", "conv"):
            return options["bounded"]
        return bool(getattr(build(self._make_network), "bounded", False))

    def _make_network(self) -> Network:
        """Build the network that ``_architecture`` describes, with any weights."""
        kind, options = self._architecture
        if kind == "mlp":
            return mlp_autoencoder(**options)
        if kind == "conv":
            return conv_autoencoder(**options)
        if kind == "callable":
            return options["make"](options["input_shape"], options["n_components"])
        return copy.deepcopy(options["module"])

    def _check_network(self, rows: Rows) -> None:
        """Check the shapes a network makes of two samples, and learn the embedding's size."""
        if not isinstance(self.module_, nn.Module):
            raise ValueError(
                f"module={self.module!r} returned {self.module_!r}, which is no torch.nn.Module."
            )
        for method in ("encode", "decode"):
            if not callable(getattr(self.module_, method, None)):
                raise ValueError(
                    f"module={self.module!r} has no method {method}(): a network needs encode(x) "
                    "and decode(z)."
                )
        if not any(parameter.requires_grad for parameter in self.module_.parameters()):
            raise ValueError(f"module={self.module!r} has no parameter that can be trained.")
        self.module_.to(rows.device, torch.float32).eval()
        x = rows.take(torch.arange(min(2, len(rows)), device=rows.device))
        try:
            with torch.no_grad():
                z = self.module_.encode(x)
                output = self.module_.decode(z)
        except RuntimeError as error:
            raise ValueError(
                f"module={self.module!r} failed on a batch of shape {tuple(x.shape)}: {error}"
            ) from error
        if z.ndim != 2 or len(z) != len(x):
            raise ValueError(
                f"encode() of module={self.module!r} maps a batch of shape {tuple(x.shape)} to "
                f"shape {tuple(z.shape)}; it must be (batch, size of the embedding)."
            )
        if output.shape != x.shape:
            raise ValueError(
                f"decode() of module={self.module!r} returns shape {tuple(output.shape)} for a "
                f"batch of shape {tuple(x.shape)}; they must be equal."
            )
        self._n_features_out = int(z.shape[1])

    @torch.no_grad()
    def _is_dead(self, rows: Rows) -> bool:
        """Whether samples that differ have one and the same embedding."""
        x = self._some(rows)
        spread = x.flatten(1).std(dim=0, correction=0).max()
        return bool(self.module_.encode(x).std(dim=0, correction=0).max() < 1e-4 * spread)

    @torch.no_grad()
    def _is_saturated(self, rows: Rows) -> bool:
        """Whether the embedding is a code of some bits."""
        if not getattr(self.module_, "bounded", False):
            return False
        derivative = 1 - self.module_.encode(self._some(rows)).square()
        return bool(derivative.mean() < _SATURATED)

    def _some(self, rows: Rows) -> Tensor:
        """Some samples."""
        # 4 MB of float32 at most, unless ten rows are more than that.
        n_some = min(len(rows), 1000, max(10, 2**20 // self.n_features_in_))
        some = torch.arange(n_some, device=rows.device) * (len(rows) - 1) // max(1, n_some - 1)
        return rows.take(some)

    def _augmentation(self, augment: Any, seed: int, device: torch.device) -> Augmentation | None:
        """A parameter ``augment``, for batches of this network."""
        if augment is None:
            return None
        return Augmentation(augment, self.image_shape_, seed, device)

    def _rows(self, X: np.ndarray, device: torch.device) -> Rows:
        """The batches of X for this network."""
        shape: tuple[int, ...] = (X.shape[1],)
        if self.image_shape_ is not None and self._architecture[0] != "mlp":
            shape = self.image_shape_
        return Rows(X, Scaling(self.mean_, self.scale_), shape, device)

    def _encode(self, X: np.ndarray) -> Tensor:
        """Embeddings of validated rows in the type users get, on the CPU."""
        dtype = output_dtype(X)
        with self._network_in(dtype) as network:
            rows = self._rows(X, _device_of(network))
            return encode(network, rows, _dtype_of(network)).cpu().to(dtype)

    def _reconstruction_error(self, X: np.ndarray) -> float:
        """Mean reconstruction loss of validated rows."""
        with self._network_in(output_dtype(X)) as network:
            rows = self._rows(X, _device_of(network))
            return mean_reconstruction_error(network, rows, _dtype_of(network))

    @contextmanager
    def _network_in(self, dtype: torch.dtype) -> Iterator[Network]:
        """The network in a precision, without gradients while in use."""
        network = self.module_
        # MPS has no float64. A copy, because prediction must not change the fitted estimator.
        if dtype == torch.float64 and _device_of(network).type != "mps":
            network = copy.deepcopy(network).double()
        with torch.inference_mode():
            yield network

    def __getstate__(self) -> dict[str, Any]:
        # The network leaves as arrays: every machine and every format can read those.
        state = dict(super().__getstate__())
        network = state.pop("module_", None)
        if network is not None:
            state["_weights"] = _arrays(network)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        weights = state.pop("_weights", None)
        super().__setstate__(state)
        if weights is not None:
            self._open(weights)

    def _open(self, weights: dict[str, np.ndarray]) -> None:
        """Make the network that has these weights."""
        network = build(self._make_network)
        # torch.tensor copies: the arrays may be read-only maps of a file.
        network.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
        self.module_ = network.eval()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _arrays(network: Network) -> dict[str, np.ndarray]:
    """A network's state, by name: copies, for training may go on."""
    state = network.state_dict()
    return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}


def _name_of(optimizer: Any) -> str | None:
    """What tells an optimiser and its options apart from others; None if nothing plain does."""
    if isinstance(optimizer, str):
        return optimizer
    options = {**getattr(optimizer, "keywords", {})}
    plain = (bool, int, float, str, tuple, type(None))
    inner = getattr(optimizer, "func", optimizer)
    if getattr(optimizer, "args", ()) or not all(isinstance(v, plain) for v in options.values()):
        return None
    if not isinstance(inner, type):
        return None
    return f"{inner.__module__}.{inner.__qualname__}{sorted(options.items())}"


def auto_batch_size(batch_size: str | int, n_samples: int) -> int:
    """The number that ``batch_size`` stands for."""
    return min(max(32, n_samples // 10), 256) if isinstance(batch_size, str) else int(batch_size)


def auto_epochs(
    max_epochs: str | int, n_samples: int, batch_size: int, *, steps: int, bounds: tuple[int, int]
) -> int:
    """The number that ``max_epochs`` stands for: ``steps`` optimiser steps, within bounds."""
    if not isinstance(max_epochs, str):
        return int(max_epochs)
    steps_per_epoch = max(1, n_samples // batch_size)
    return min(max(bounds[0], round(steps / steps_per_epoch)), bounds[1])


def check_optimizer(optimizer: str | Callable[..., torch.optim.Optimizer]) -> None:
    """Refuse names torch does not have, and what steps otherwise than by gradients."""
    found = getattr(torch.optim, optimizer, None) if isinstance(optimizer, str) else optimizer
    found = getattr(found, "func", found)
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam)
    is_unfit = isinstance(found, type) and (issubclass(found, unfit) or found is Optimizer)
    if not callable(found) or is_unfit:
        raise ValueError(
            f"optimizer={optimizer!r} is not a first-order optimizer of torch.optim. "
            "Use for example 'Adam', 'AdamW' or 'SGD'."
        )


def seed_noise(network: Network, seed: int, device: torch.device) -> None:
    """Give a network the random stream of its masking noise, on its device."""
    if isinstance(network, MirroredAutoencoder):
        network.generator = torch.Generator(device).manual_seed(seed)


def _positive_integers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """A parameter that is a sequence of integers, checked."""
    values = tuple(np.atleast_1d(values).tolist())
    if not all(isinstance(value, int) and value >= least for value in values):
        raise ValueError(f"{name}={values} must be integers of at least {least}.")
    return values


def _device_of(network: Network) -> torch.device:
    """Where a network's weights are."""
    return next(network.parameters()).device


def _dtype_of(network: Network) -> torch.dtype:
    """The type of a network's weights."""
    return next(network.parameters()).dtype
