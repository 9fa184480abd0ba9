"""Passes as CUDA graphs: what took a launch for each of some hundred operations takes one.

A graph reads and writes the memory it was captured with. So each shape of pass has memory of its
own; what is planned is copied there, and the graph replayed. Shapes are few, as row counts, pages
and jobs come from small sets (`passes`, `attention`); the first pass of each is captured. The
graph's body is `TorchTarget.run_layers`, the same that runs without graphs.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

import torch

from peagle.model.kv_cache import KVCache
from peagle.model.passes import Pass, PlannedStep

Layers = Callable[[Pass], tuple[torch.Tensor, torch.Tensor]]
"""Runs a pass: its residual stream `[padded, hidden]` and features `[padded, taps * hidden]`."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Makes what repeats a body, over the same memory, after it ran once."""

MOST_SHAPES: Final = 64
"""Graphs kept for one KV cache; beyond them the one unused for longest is dropped."""


class PassGraphs:
    """Runs the passes of a target, each shape captured when it first comes.

    Args:
        layers: Runs a pass.
        capture: Makes a graph.
    """

    def __init__(self, layers: Layers, capture: Capture) -> None:
        self._layers = layers
        self._capture = capture
        # A graph reads the pool of one KV cache, and is of no use when that is gone.
        self._of_caches: WeakKeyDictionary[KVCache, _CacheGraphs] = WeakKeyDictionary()

    def run(self, step: PlannedStep) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Run the passes of a step, whose uncommitted keys and values are then filled.

        Returns:
            What `layers` gives for each, in memory of its own.
        """
        graphs = self._of_caches.get(step.cache)
        if graphs is None:
            graphs = self._of_caches[step.cache] = _CacheGraphs()
        outputs = [self._captured(graphs, one).run(one) for one in step.passes]
        step.uncommitted.copy_(graphs.uncommitted[step.uncommitted.shape[2]])
        return outputs

    def _captured(self, graphs: "_CacheGraphs", one: Pass) -> "_CapturedPass":
        shape = one.plan.shape
        found = graphs.by_shape.get(shape)
        if found is None:
            step_rows = one.step.uncommitted.shape[2]
            if step_rows not in graphs.uncommitted:
                graphs.uncommitted[step_rows] = torch.zeros_like(one.step.uncommitted)
            while len(graphs.by_shape) >= MOST_SHAPES:
                graphs.by_shape.popitem(last=False)
            found = _CapturedPass(one, graphs.uncommitted[step_rows], self._layers, self._capture)
            graphs.by_shape[shape] = found
        graphs.by_shape.move_to_end(shape)
        return found


class _CacheGraphs:
    """The graphs over one KV cache.

    Attributes:
        by_shape: The least recently used first.
        uncommitted: Keys and values of a step's rows while its passes run, by its padded rows.
    """

    def __init__(self) -> None:
        self.by_shape: OrderedDict[tuple[object, ...], _CapturedPass] = OrderedDict()
        self.uncommitted: dict[int, torch.Tensor] = {}


class _CapturedPass:
    """A pass in memory of its own, and what repeats its computation.

    Args:
        one: A pass of the shape that is wanted.
        uncommitted: Where the rows of its steps keep keys and values.
        layers: Runs a pass.
        capture: Makes what repeats it.
    """

    def __init__(
        self, one: Pass, uncommitted: torch.Tensor, layers: Layers, capture: Capture
    ) -> None:
        self._tokens = one.tokens.clone()
        self._turns = [turns.clone() for turns in one.turns]
        self._plan = one.plan.twin()
        self._outputs: list[torch.Tensor] = []
        # Held by the body alone, which a graph makes needless: the cache is free to go.
        lasting = replace(
            one,
            tokens=self._tokens,
            turns=self._turns,
            plan=self._plan,
            step=PlannedStep(one.step.cache, [], [], 0, uncommitted, one.step.kinds, []),
        )
        outputs = self._outputs

        def body() -> None:
            given = layers(lasting)
            if not outputs:
                outputs.extend(torch.empty_like(output) for output in given)
            for kept, output in zip(outputs, given, strict=True):
                kept.copy_(output)

        self._replay = capture(body)

    def run(self, one: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a pass of this shape."""
        self._tokens.copy_(one.tokens)
        for kept, turns in zip(self._turns, one.turns, strict=True):
            kept.copy_(turns)
        self._plan.load(one.plan)
        self._replay()
        residual, tapped = self._outputs
        return residual.clone(), tapped.clone()


class CudaCapture:
    """Captures bodies as CUDA graphs, which share the memory of what lives only while they run.

    Sharing is safe because graphs run one after another, and nothing in shared memory is read after
    the graph that wrote it: outputs are copied to memory from outside.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, body: Callable[[], None]) -> Callable[[], None]:
        """Run a body once, so that nothing is set up or kept for the first time in the graph."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                body()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(
                graph,
                pool=self._memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                body()
        return graph.replay
