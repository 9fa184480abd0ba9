"""The training loop: batches in a fixed order, updates, checkpoints, held-out measurements."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from peagle.errors import CheckpointError, InvalidRequestError
from peagle.train.batch import Batch, make_batch
from peagle.train.checkpoint import Progress, read_checkpoint, write_checkpoint
from peagle.train.feature_cache import FeatureSource
from peagle.train.features import Document, Features
from peagle.train.held_out import Chains, HeldOut, follow_chains, measure
from peagle.train.interruption import uninterrupted
from peagle.train.loss import Teacher, restricted_kl
from peagle.train.networks.trunk import Trunk
from peagle.train.optimizer import Optimizer
from peagle.train.recipe import Recipe
from peagle.train.rollouts import DocumentRows, Sampling, sample_rows, segments


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends, and how often it stops to write and to measure.

    Attributes:
        tokens: Response tokens to train on; the learning rates fall towards this end.
        seconds: Most time of this call, towards which the rates fall as well; None for no limit.
        checkpoint_seconds: Time between checkpoints.
        measure_tokens: Response tokens between two held-out measurements.
        patience: Measurements without a better acceptance length after which the run ends.
    """

    tokens: int
    seconds: float | None = None
    checkpoint_seconds: float = 300.0
    measure_tokens: int = 200_000
    patience: int = 10


class Trainer:
    """Trains one drafter.

    Args:
        network: What trains; its weights are where it starts.
        teacher_head: Rows of the target's output head for the draft vocabulary,
            `[draft vocab, target hidden]`.
        target_ids: Target id of each draft id, int64 `[draft vocab]`.
        documents: All documents.
        training: Numbers of those to train on.
        held_out: Numbers of those to measure on.
        source: Features of documents.
        recipe: How.
        run: The run's folder.
        identity: What must agree on resuming.
    """

    def __init__(
        self,
        network: Trunk,
        *,
        teacher_head: torch.Tensor,
        target_ids: torch.Tensor,
        documents: Sequence[Document],
        training: Sequence[int],
        held_out: Sequence[int],
        source: FeatureSource,
        recipe: Recipe,
        run: Path,
        identity: dict[str, str],
    ) -> None:
        self.network = network
        self.progress = Progress()
        self._head = teacher_head
        self._ids = target_ids
        self._documents = documents
        self._training = np.array(training)
        self._held_out = held_out
        self._source = source
        self._recipe = recipe
        self._run = run
        self._identity = identity
        self._device = target_ids.device
        self._began = time.perf_counter()
        # False while an update is half made, which must never become a checkpoint.
        self._whole = True
        self._sampling = Sampling(
            recipe.depths, recipe.ratio, recipe.min_ratio, recipe.anchor_share
        )
        self._optimizer = Optimizer(
            network, matrix_rate=recipe.matrix_rate, other_rate=recipe.other_rate
        )
        self._average = {
            name: weight.detach().clone() for name, weight in network.named_parameters()
        }

    def resume(self) -> None:
        """Go back to the run's last checkpoint.

        Raises:
            CheckpointError: There is none, or it belongs to another target, recipe or data.
        """
        self.progress, groups = read_checkpoint(self._run, self._identity)
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                weight.copy_(groups["weights"][name])
        self._average = {name: value.to(self._device) for name, value in groups["average"].items()}
        self._optimizer.load(groups["optimizer"])
        self._forget_later_steps()

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: The disk is full; the last checkpoint is still there.
        """
        weights = {name: weight.detach() for name, weight in self.network.named_parameters()}
        write_checkpoint(
            self._run,
            self.progress,
            self._identity,
            {
                "weights": weights,
                "average": self._average,
                "optimizer": self._optimizer.tensors(),
            },
        )

    def average(self) -> dict[str, torch.Tensor]:
        """The running average of the weights by name."""
        return self._average

    def train(
        self,
        limits: Limits,
        *,
        on_step: Callable[[Progress, float], None] = lambda _progress, _loss: None,
        on_measured: Callable[[HeldOut, bool], None] = lambda _held_out, _best: None,
    ) -> None:
        """Train until a limit is reached, and write a checkpoint, also where something is raised.

        Ctrl-C and SIGTERM wait for the end of an update.

        Args:
            limits: When to end.
            on_step: Told of the progress and the mean loss after each update.
            on_measured: Told of each held-out measurement, and whether it is the best so far.

        Raises:
            CheckpointError: The disk is full; the last checkpoint is still there.
            InvalidRequestError: The gradient is not finite; the checkpoint is from before it.
        """
        progress = self.progress
        self._began = written = time.perf_counter()
        try:
            while progress.tokens < limits.tokens and progress.stale < limits.patience:
                due = progress.tokens // limits.measure_tokens
                if due > progress.measured:
                    on_measured(*self._measured())
                    progress.measured = due
                    continue
                with uninterrupted():
                    loss = self._step(limits)
                on_step(progress, loss)
                if time.perf_counter() - written > limits.checkpoint_seconds:
                    self.save()
                    written = time.perf_counter()
                if self._left(limits) <= 0:
                    break
            if self._left(limits) <= 0:
                on_measured(*self._measured())
        finally:
            if self._whole:
                self.save()

    def measure(self) -> HeldOut:
        """Measure the averaged weights on held-out documents."""
        return measure(map(self.chains, self._held_out), self._recipe.depths)

    def measure_beginning(self) -> HeldOut:
        """Measure what the run begins with, and note it as what has to be beaten."""
        held_out, _ = self._measured()
        self.progress.begun_with = held_out.acceptance_length
        return held_out

    def chains(self, index: int) -> Chains:
        """Run the averaged weights along a document."""
        kept = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}
        try:
            self._put(self._average)
            return follow_chains(
                self._documents[index],
                self._source.read([index])[0],
                self._predict,
                depths=self._recipe.depths,
                device=self._device,
            )
        finally:
            with uninterrupted():
                self._put(kept)

    def _measured(self) -> tuple[HeldOut, bool]:
        held_out = self.measure()
        better = held_out.acceptance_length > self.progress.best
        self.progress.best = max(self.progress.best, held_out.acceptance_length)
        self.progress.stale = 0 if better else self.progress.stale + 1
        self._log({
            "step": self.progress.step, "tokens": self.progress.tokens,
            "held_out_acceptance_length": round(held_out.acceptance_length, 4),
            "held_out_top1": held_out.top1, "held_out_reached": held_out.reached,
        })  # fmt: skip
        return held_out, better

    def _step(self, limits: Limits) -> float:
        """Make one update and log it, giving its mean loss."""
        progress = self.progress
        clock, reading = time.perf_counter(), self._source.seconds
        place = progress.epoch, progress.cursor
        try:
            loss, tokens = self._gradient()
        except BaseException:
            # The documents are still to be trained on.
            progress.epoch, progress.cursor = place
            raise
        self._whole = False
        self._optimizer.step(self._rate(limits))
        self._follow()
        progress.step += 1
        progress.tokens += tokens
        self._whole = True
        reading = self._source.seconds - reading
        progress.reading_seconds += reading
        progress.seconds += time.perf_counter() - clock - reading
        self._log({
            "step": progress.step, "tokens": progress.tokens, "loss": loss,
            "epoch": progress.epoch, "seconds": round(progress.seconds, 1),
            "reading_seconds": round(progress.reading_seconds, 1),
        })  # fmt: skip
        return loss

    def _gradient(self) -> tuple[float, int]:
        """Make the gradient of the next update, giving its mean loss and response tokens."""
        chosen, rows = self._next_documents()
        features = self._source.read(chosen)
        total = sum(int(part.supervised.sum()) for part in rows)
        loss = 0.0
        whole: list[int] = []
        for number, part in enumerate(rows):
            if len(part.anchors) <= self._recipe.segment_rows:
                whole.append(number)
                continue
            pieces = -(-len(part.anchors) // self._recipe.segment_rows)
            for piece in segments(part, pieces):
                loss += self._accumulate([chosen[number]], [features[number]], [piece], total)
        if whole:
            loss += self._accumulate(
                [chosen[number] for number in whole],
                [features[number] for number in whole],
                [rows[number] for number in whole],
                total,
            )
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._recipe.clip)
        if not torch.isfinite(norm):
            raise InvalidRequestError(
                f"The gradient of update {self.progress.step + 1} is not finite.",
                remedy="Begin a new run with a lower matrix_rate and other_rate in its recipe.",
                field="matrix_rate",
            )
        return loss / total, sum(self._documents[index].teachers for index in chosen)

    def _accumulate(
        self,
        indices: Sequence[int],
        features: Sequence[Features],
        rows: Sequence[DocumentRows],
        total: int,
    ) -> float:
        """Add the gradients of some rows to those of the update, giving their summed loss."""
        batch = make_batch(
            [self._documents[index] for index in indices], features, rows, self._device
        )
        with torch.autocast(self._device.type, torch.bfloat16):
            hidden = self.network(batch)
            loss = restricted_kl(
                hidden,
                self.network.head(),
                Teacher(batch.teacher, batch.log_normalizer, self._head),
                batch.teacher_positions,
            )
        torch.autograd.backward(loss / total)
        return float(loss.detach())

    @torch.no_grad()
    def _predict(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(self._device.type, torch.bfloat16):
            hidden = self.network(batch)
            logits = torch.nn.functional.linear(hidden, self.network.head())
        best = self._ids[logits.max(-1).indices]
        place = torch.searchsorted(self._ids, batch.targets).clamp(max=len(self._ids) - 1)
        written = logits.gather(1, place.unsqueeze(1)).squeeze(1).float()
        written = (written - logits.float().logsumexp(-1)).exp()
        return best, written.where(self._ids[place] == batch.targets, 0.0)

    def _next_documents(self) -> tuple[list[int], list[DocumentRows]]:
        """Take documents from the epoch's order until they fill an update."""
        progress = self.progress
        chosen: list[int] = []
        rows: list[DocumentRows] = []
        taken = 0
        for index in self._order():
            document = self._documents[index]
            chance = np.random.default_rng((self._recipe.seed, progress.epoch, int(index)))
            part = sample_rows(document.prompt_tokens, len(document), self._sampling, chance)
            chosen.append(int(index))
            rows.append(part)
            taken += len(part.anchors)
            if taken >= self._recipe.rows_per_step:
                break
        return chosen, rows

    def _order(self) -> Iterator[int]:
        """Go through the documents, epoch after epoch, from where the run stands."""
        progress = self.progress
        while True:
            chance = np.random.default_rng((self._recipe.seed, progress.epoch))
            order = chance.permutation(self._training)
            while progress.cursor < len(order):
                progress.cursor += 1
                yield int(order[progress.cursor - 1])
            progress.epoch += 1
            progress.cursor = 0

    def _rate(self, limits: Limits) -> float:
        """Share of the learning rates: warm-up, constant, then falling towards the end."""
        recipe = self._recipe
        rising = min(1.0, (self.progress.step + 1) / max(recipe.warmup_steps, 1))
        left = max(self._left(limits), 0.01)
        falling = min(1.0, left / recipe.decay_share) if recipe.decay_share else 1.0
        return rising * falling

    def _left(self, limits: Limits) -> float:
        """Share of the run that is still to come, by the limit that is nearer."""
        left = 1 - self.progress.tokens / limits.tokens
        if limits.seconds is not None:
            left = min(left, 1 - (time.perf_counter() - self._began) / limits.seconds)
        return left

    @torch.no_grad()
    def _follow(self) -> None:
        # The average forgets its start quickly: early weights are far from where training goes.
        decay = min(
            self._recipe.average_decay, (1 + self.progress.step) / (10 + self.progress.step)
        )
        names, weights = zip(*self.network.named_parameters(), strict=True)
        torch._foreach_lerp_([self._average[name] for name in names], list(weights), 1 - decay)

    @torch.no_grad()
    def _put(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, weight in self.network.named_parameters():
            weight.copy_(tensors[name])

    def _forget_later_steps(self) -> None:
        """Take out of the log what the checkpoint does not know of: it will be done again."""
        log = self._run / "log.jsonl"
        kept = []
        for line in log.read_text("utf-8").splitlines() if log.exists() else []:
            try:
                step = json.loads(line)["step"]
            except ValueError:
                continue  # the end of a line was never written
            if step <= self.progress.step:
                kept.append(line + "\n")
        unfinished = log.with_name("log.jsonl.part")
        with self._disk_errors():
            unfinished.write_text("".join(kept), "utf-8")
            unfinished.replace(log)

    def _log(self, line: dict[str, object]) -> None:
        with self._disk_errors(), (self._run / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"The log in {self._run} cannot be written ({error.strerror or error}).",
                remedy="Free some space, then go on with --resume.",
                field="output",
            ) from None
