"""skorch's net, with a batch loop that costs no more than a bare torch loop."""

from __future__ import annotations

import dis
import inspect
import math
import signal
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, EpochTimer, PrintLog
from skorch.utils import TeeGenerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from .rows import Batches, Rows


class CallbackStop(Exception):
    """A callback asked for the end of the phase."""


class _NoCriterion:
    """The loss is the module's own; skorch wants a criterion all the same."""


class Trainer(NeuralNet):
    """Trains a :class:`~skdeepcluster.objective.JointLoss` for one phase.

    Callbacks, history, optimiser and schedulers are skorch's. The batch loop is not: batches
    are slices of tensors, and losses stay on the device until the epoch is over.

    Parameters
    ----------
    module : JointLoss
        Trained in place.
    optimizer : str or callable
        Name in ``torch.optim``, class, or ``functools.partial`` of one.
    lr : float
        Learning rate.
    batch_size : int
        Rows a step.
    order : torch.Generator
        Random stream of the minibatch order, on the CPU.
    device : torch.device
        Where the module and the batches are.
    compile : bool
        Whether the module is compiled.
    callbacks : list of skorch callbacks, or None
        Called as skorch would. An exception of type KeyboardInterrupt that a callback raises
        itself, which is how skorch's EarlyStopping asks for the end, ends the phase.
    after_epoch : callable or None
        Called after every epoch, before the callbacks; returns numbers for the history, and
        the reason to stop or None.
    one_cycle : bool
        Whether the learning rate rises from a 25th of ``lr`` to ``lr`` in the first 30 % of the
        steps and then falls to almost 0, or stays.
    verbose : int
        Whether to print a row per epoch.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: str | Callable[..., torch.optim.Optimizer],
        lr: float,
        batch_size: int,
        order: torch.Generator,
        device: torch.device,
        compile: bool = False,
        callbacks: Sequence[Any] | None = None,
        after_epoch: Callable[[], tuple[dict[str, float | str], str | None]] | None = None,
        one_cycle: bool = False,
        verbose: int = 0,
    ):
        optimizer = getattr(torch.optim, optimizer) if isinstance(optimizer, str) else optimizer
        super().__init__(
            module,
            criterion=_NoCriterion,
            optimizer=optimizer,
            lr=lr,
            batch_size=batch_size,
            train_split=None,
            callbacks=None if callbacks is None else list(callbacks),
            device=device,
            compile=compile,
            verbose=verbose,
        )
        self.order = order
        self.after_epoch = after_epoch
        self.one_cycle = one_cycle

    def torch_compile(self, module: nn.Module, name: str) -> nn.Module:
        """Compile in place, where asked for: a wrapper would rename the weights."""
        if self.compile:
            module.compile()
        return module

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        printing = [("print_log", PrintLog())] if self.verbose else []
        return [("epoch_timer", EpochTimer()), *printing]

    def get_params_for_optimizer(self, prefix: str, named_parameters: Any) -> Any:
        """Add the fused kernel where the optimiser has one."""
        args, kwargs = super().get_params_for_optimizer(prefix, named_parameters)
        chosen = getattr(self.optimizer, "keywords", {})
        free = not {"fused", "foreach", "differentiable"} & set(chosen)
        if free and self.device.type in ("cpu", "cuda") and _has_option(self.optimizer, "fused"):
            kwargs.setdefault("fused", True)
        return args, kwargs

    def train(self, rows: Rows, max_epochs: int) -> str:
        """Train for at most ``max_epochs`` epochs.

        Returns
        -------
        str
            Why training ended: "max_epochs", "callback", or the word of ``after_epoch``.

        Raises
        ------
        ValueError
            If the loss is not finite.
        """
        self.initialize()
        self._best_loss = math.inf
        batches = Batches(rows, self.batch_size, self.order)
        self.schedule_ = self._make_schedule(max_epochs * len(batches))
        reason = "max_epochs"
        try:
            self.notify("on_train_begin", X=rows, y=None)
            for _ in range(max_epochs):
                self.notify("on_epoch_begin", dataset_train=rows, dataset_valid=None)
                self.run_single_epoch(batches, training=True, prefix="train", step_fn=None)
                stop = self._end_epoch()
                self.notify("on_epoch_end", dataset_train=rows, dataset_valid=None)
                if stop is not None:
                    reason = stop
                    break
        except CallbackStop:
            reason = "callback"
            if self.history and "train_loss" not in self.history[-1]:
                # Stopped in the middle of an epoch: nothing is known of it.
                self.history.pop()
        self.notify("on_train_end", X=rows, y=None)
        return reason

    def _make_schedule(self, n_steps: int) -> OneCycleLR | None:
        """The schedule of the learning rate, stepped after every batch."""
        if not self.one_cycle:
            return None
        # One step more than is taken, so that the last one does not leave the cycle.
        return OneCycleLR(self.optimizer_, self.lr, n_steps + 1, cycle_momentum=False)

    def rows_of_history(self) -> list[dict[str, float]]:
        """The history as plain dicts, one per epoch, without the records of single batches."""
        return [{k: v for k, v in row.items() if k != "batches"} for row in self.history]

    def notify(self, method_name: str, **cb_kwargs: Any) -> None:
        """Call the callbacks; what they raise to end training becomes a ``CallbackStop``."""
        getattr(self, method_name)(self, **cb_kwargs)
        nothing = getattr(Callback, method_name)
        for _, callback in self.callbacks_:
            method = getattr(callback, method_name)
            if getattr(method, "__func__", None) is nothing:
                continue
            try:
                method(self, **cb_kwargs)
            except KeyboardInterrupt as interrupt:
                if _raised_on_purpose(interrupt):
                    raise CallbackStop from None
                raise

    def run_single_epoch(
        self, iterator: Any, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        """Run the batches of an epoch and record their mean losses: one sync with the device."""
        self._set_training(training)
        parameters = list(self.get_all_learnable_params())
        sizes: list[int] = []
        # One tensor for all of them: each loss kept as a tensor of its own would pin the memory
        # that was freed around it, about 1 MB a step.
        losses = torch.zeros(len(iterator), 2, device=self.device)
        for step, batch in enumerate(iterator):
            self.notify("on_batch_begin", batch=batch, training=training)
            loss = self._step(batch, parameters)
            for column, part in zip(losses[step], loss, strict=True):
                if part is not None:
                    column.copy_(part)
            sizes.append(len(batch[1]))
            self.notify("on_batch_end", batch=batch, training=training, y_pred=None, loss=loss)
        self._record(prefix, sizes, losses, joint=loss[1] is not None)

    def _step(self, batch: Any, parameters: list[Any]) -> tuple[Tensor, Tensor | None]:
        """One optimiser step."""
        self.optimizer_.zero_grad(set_to_none=True)
        reconstruction, clustering = self.module_(*batch)
        loss = reconstruction if clustering is None else reconstruction + clustering
        loss.backward()
        self.notify(
            "on_grad_computed",
            named_parameters=TeeGenerator(iter(parameters)),
            batch=batch,
            training=True,
        )
        self.optimizer_.step()
        self.module_.after_step(*batch)
        if self.schedule_ is not None:
            self.schedule_.step()
        return reconstruction.detach(), None if clustering is None else clustering.detach()

    def _record(self, prefix: str, sizes: list[int], losses: Tensor, *, joint: bool) -> None:
        """Write the epoch's mean losses into the history."""
        weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        reconstruction, clustering = (weights @ losses.cpu().double()).tolist()
        loss = reconstruction + clustering
        if joint:
            self.history.record("reconstruction_loss", reconstruction)
            self.history.record("clustering_loss", clustering)
        if not math.isfinite(loss):
            raise ValueError(
                f"The training loss is {loss} after epoch {self.history[-1, 'epoch']} of "
                f"{'joint training' if joint else 'the Autoencoder'}: it diverged. Use a "
                f"learning rate there below lr={self.lr:g}, or a less extreme weight of the loss."
            )
        self.history.record(f"{prefix}_loss", loss)
        self.history.record(f"{prefix}_loss_best", loss < self._best_loss)
        self._best_loss = min(self._best_loss, loss)

    def _end_epoch(self) -> str | None:
        """Run the full-data update and record what it says."""
        if self.after_epoch is None:
            return None
        numbers, stop = self.after_epoch()
        for key, value in numbers.items():
            self.history.record(key, value)
        return stop


def _has_option(optimizer: Any, name: str) -> bool:
    """Whether an optimiser class (or a partial of one) has a keyword."""
    return name in inspect.signature(optimizer).parameters


def _raised_on_purpose(error: BaseException) -> bool:
    """Whether a ``raise`` statement made the exception, rather than a signal between two lines."""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    code = traceback.tb_frame.f_code
    handler = getattr(signal.getsignal(signal.SIGINT), "__code__", None)
    return code is not handler and code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]
