"""Check and time the engine on a GPU; run by scripts/check_cuda.sh, which says how.

Checked, with random weights of several shapes and with the catalog's small model if it is in the
cache: rows of mixed passes against the same rows decoded one at a time; passes as graphs against
passes without; and answers with every kind of drafts, mixed in a batch, against answers written
alone without drafts. Timed, with graphs and without: a bare target pass, the drafter's pass within
a step, and a whole step with full trees.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from peagle.catalog import resolve
from peagle.catalog.resolution import is_cached
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import Drafter
from peagle.draft.proposer import new_proposer
from peagle.draft.untrained import random_drafter
from peagle.engine.choice import TokenChooser
from peagle.engine.engine import Engine
from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.stops import StopRule
from peagle.errors import PeagleError
from peagle.evaluate.machine import describe_machine
from peagle.evaluate.oracle import OracleProposer
from peagle.evaluate.row_check import check_rows
from peagle.model.config import DecoderConfig, RopeScaling
from peagle.model.decoder import DecoderWeights
from peagle.model.kv_cache import page_bytes, pages_for
from peagle.model.loading import choose_device, load_target
from peagle.model.quantized_linear import QuantizedWeight
from peagle.model.quantizing import quantize_int4, quantize_int8
from peagle.model.rows import SequenceRows
from peagle.model.torch_target import TorchTarget
from peagle.quantization import Quantization
from peagle.sampling_params import SamplingParams
from peagle.spec import ParallelDraftingSpec

CATALOG_MODEL = "smollm2-135m-instruct"
LLAMA_ROPE = RopeScaling(32.0, 1.0, 4.0, 8192)
LLAMA_1B = DecoderConfig(
    family="llama", vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_layers=16,
    num_heads=32, num_kv_heads=8, head_dim=64, rms_norm_eps=1e-5, rope_theta=500_000.0,
    rope_scaling=LLAMA_ROPE, context_length=4096, tied_embeddings=True,
)  # fmt: skip
LLAMA_8B = replace(
    LLAMA_1B, hidden_size=4096, intermediate_size=14_336, num_layers=32, head_dim=128,
    rope_scaling=replace(LLAMA_ROPE, factor=8.0), tied_embeddings=False,
)  # fmt: skip
SMALL = replace(
    LLAMA_1B, vocab_size=4096, hidden_size=512, intermediate_size=1536, num_layers=4, num_heads=8,
    num_kv_heads=2, tied_embeddings=False,
)  # fmt: skip
TINY = replace(
    SMALL, vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=4, num_heads=4,
    head_dim=16, context_length=1024,
)  # fmt: skip
NETWORK = {"method": "peagle", "lookup": False, "corpus": False, "adaptive": False}
TEXT = {"method": "lookup", "corpus": False, "adaptive": False}
NONE = {"method": "none"}
DRAFTS = {"no drafts": NONE, "network": NETWORK, "text": TEXT, "oracle": TEXT}
SAMPLINGS = ({}, {"temperature": 0.8, "seed": 1})


@dataclass
class Size:
    """How much is checked and timed."""

    prompts: tuple[int, ...]
    tokens: int
    rows: tuple[int, ...]
    streams: tuple[int, ...]
    context: int
    repeats: int


WHOLE = Size((3, 40, 63, 64, 130, 200), 24, (1, 16, 32, 64), (1, 8, 32), 256, 10)
SHORT = Size((3, 64), 5, (1, 16), (1, 3), 40, 2)


@dataclass
class Report:
    """What was found, in lines of the table.

    Attributes:
        deadline: Nothing begins after it, on the clock of `time.perf_counter`.
        lines: Model, what, how many, and what came out without graphs and with.
        differing: Rows and answers that differed.
        skipped: What was left out, and why.
    """

    deadline: float
    lines: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    differing: int = 0
    skipped: list[str] = field(default_factory=list)

    def part(self, name: str, needed_s: float, run: Callable[[], None]) -> None:
        """Run a part if there is time for it."""
        if time.perf_counter() + needed_s > self.deadline:
            self.skipped.append(f"{name} (no time left)")
            return
        try:
            run()
        except torch.cuda.OutOfMemoryError:
            self.skipped.append(f"{name} (too little memory)")

    def compared(self, model: str, what: str, count: int, differing: int) -> None:
        """Note a comparison."""
        self.differing += differing
        self.lines.append((model, what, f"{count:,}", "", f"{differing} differ"))


class RandomWeights(Mapping[str, torch.Tensor | QuantizedWeight]):
    """Weights made when they are asked for, so that a model is in memory only once."""

    def __init__(
        self, config: DecoderConfig, device: torch.device, quantization: Quantization
    ) -> None:
        self._shapes = config.tensor_shapes()
        if config.tied_embeddings:
            del self._shapes["lm_head.weight"]
        self._device, self._quantization = device, quantization

    def __getitem__(self, name: str) -> torch.Tensor | QuantizedWeight:
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(list(self._shapes).index(name))
        weight = torch.randn(
            shape, generator=generator, device=self._device, dtype=torch.bfloat16
        )  # fmt: skip
        if len(shape) == 1:
            return 1 + 0.1 * weight
        weight *= 1 / math.sqrt(shape[-1])
        if self._quantization == "none" or name == "model.embed_tokens.weight":
            return weight
        if self._quantization == "int4" and name != "lm_head.weight":
            return quantize_int4(weight)
        return quantize_int8(weight)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def repeated(body: Callable[[], None]) -> Callable[[], None]:
    """Stands for a capture where there is no GPU: runs the body over the same memory again."""
    body()
    return body


@torch.inference_mode()
def random_target(
    config: DecoderConfig, device: torch.device, quantization: Quantization = "none"
) -> TorchTarget:
    weights = DecoderWeights.prepare(
        config, RandomWeights(config, device, quantization), torch.bfloat16, device
    )
    capture = repeated if device.type == "cpu" else None
    return TorchTarget(config, weights, torch.bfloat16, device, capture=capture)


class NoText:
    """A detokenizer of a model without a vocabulary."""

    def push(self, ids: Sequence[int]) -> str:  # noqa: ARG002
        """Take tokens."""
        return ""

    def flush(self) -> str:
        """Give what is left."""
        return ""


def answer(
    target: TorchTarget, prompt: list[int], settings: Mapping[str, object], *, tokens: int,
    drafts: Mapping[str, object], known: Sequence[int] | None = None,
) -> EngineSequence:  # fmt: skip
    """Make an answer for an engine; `known` is what an oracle proposes."""
    vocab = target.config.vocab_size
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **settings)
    spec = ParallelDraftingSpec.parse(drafts)
    proposer = None
    if known is not None:
        proposer = OracleProposer(known, corrupted=(3,), vocab_size=vocab)
    elif spec.method != "none":
        proposer = new_proposer(prompt, spec=spec, corpus=None, prior=MixturePrior.load())
    room = target.config.context_length - len(prompt)
    return EngineSequence(
        prompt_ids=prompt, params=params, spec=spec, positions=len(prompt) + tokens,
        chooser=TokenChooser(params, prompt, vocab_size=vocab, eos_ids=(), seed=params.seed or 0,
                             choice=0),
        stops=StopRule(params, eos_ids=(), context_room=room, detokenizer=NoText()),
        proposer=proposer,
    )  # fmt: skip


def engine_for(
    target: TorchTarget, drafter: Drafter | None, streams: int, positions: int
) -> Engine:
    pages = streams * pages_for(positions)
    cache = target.new_cache(pages * page_bytes(target.config, target.kv_dtype))
    return Engine(target, cache, drafter, max_concurrent=streams)


def texts(target: TorchTarget, lengths: Sequence[int]) -> list[list[int]]:
    chance = random.Random(7)
    return [[chance.randrange(target.config.vocab_size) for _ in range(n)] for n in lengths]


def written(engine: Engine, answers: list[EngineSequence]) -> list[list[int]]:
    for one in answers:
        engine.add(one)
    while engine.running or engine.waiting:
        engine.step()
    for one in answers:
        if one.error is not None:
            raise one.error
    return [one.output_ids for one in answers]


def check_answers(
    report: Report, name: str, target: TorchTarget, drafter: Drafter, size: Size
) -> None:
    prompts = texts(target, size.prompts)
    positions = max(size.prompts) + size.tokens
    engine = engine_for(target, drafter, len(prompts), positions)
    compared = differing = accepted = 0
    for settings in SAMPLINGS:
        alone = [
            written(engine, [answer(target, prompt, settings, tokens=size.tokens, drafts=NONE)])[0]
            for prompt in prompts
        ]
        for drafts, spec in DRAFTS.items():
            answers = [
                answer(target, prompt, settings, tokens=size.tokens, drafts=spec,
                       known=known if drafts == "oracle" else None)
                for prompt, known in zip(prompts, alone, strict=True)
            ]  # fmt: skip
            together = written(engine, answers)
            compared += len(together)
            differing += sum(a != b for a, b in zip(together, alone, strict=True))
            if drafts == "oracle":
                accepted += sum(one.statistics.accepted_tokens for one in answers)
    report.compared(name, "answers with and without drafts", compared, differing)
    if not accepted:
        raise RuntimeError("an oracle of which nothing is accepted tests nothing")


def check_graphs(report: Report, name: str, target: TorchTarget, size: Size) -> None:
    """Compare passes as graphs with passes without, over one mixed step."""
    prompts = texts(target, size.prompts)
    cache = target.new_cache(
        sum(pages_for(len(one) + 20) for one in prompts)
        * page_bytes(target.config, target.kv_dtype)
    )
    step = []
    for prompt in prompts:
        sequence = cache.open(len(prompt) + 20)
        rows = SequenceRows(sequence, prompt, logits="none")
        target.forward(cache, [rows]).commit([range(len(prompt))])
        step.append(SequenceRows(sequence, [1, 2, 3, 4, 5], [-1, 0, 0, 1, 3]))
    outputs = []
    graphs = target.graphs
    for kind in (graphs, None):
        target.graphs = kind
        outputs.append(target.forward(cache, step, features=True))
    target.graphs = graphs
    pairs = [
        (a, b)
        for kind in ("logits", "features")
        for one, other in zip(*(getattr(output, kind) for output in outputs), strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    differing = sum(not torch.equal(a, b) for a, b in pairs)
    report.compared(name, "rows as graphs and without", len(pairs), differing)


def time_pass(target: TorchTarget, rows: int, size: Size) -> float:
    """Give the milliseconds of a bare target pass, rows in a tree."""
    positions = size.context + rows
    cache = target.new_cache(pages_for(positions) * page_bytes(target.config, target.kv_dtype))
    sequence = cache.open(positions)
    cache.take_pages(sequence, size.context)
    sequence.length = size.context
    parents = [-1, *(0 if place % 4 == 0 else place for place in range(rows - 1))]
    seconds = []
    for _ in range(size.repeats + 3):
        began = time.perf_counter()
        output = target.forward(cache, [SequenceRows(sequence, [1] * rows, parents)])
        output.logits[0][-1, 0].item()
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds[3:])


def time_steps(
    target: TorchTarget, drafter: Drafter, streams: int, drafts: Mapping[str, object], size: Size
) -> dict[str, float]:
    """Give milliseconds of a step, and of the drafter's pass in it."""
    tokens = (size.repeats + 4) * 9
    engine = engine_for(target, drafter, streams, size.context + tokens)
    answers = [
        answer(target, prompt, {}, tokens=tokens, drafts=drafts)
        for prompt in texts(target, [size.context] * streams)
    ]
    for one in answers:
        engine.add(one)
    while not engine.running or any(one.prefilling for one in engine.running):
        engine.step()
    whole, network = [], []
    for turn in range(size.repeats + 3):
        before, began = engine.seconds.network, time.perf_counter()
        engine.step()
        if turn >= 3:
            whole.append(1000 * (time.perf_counter() - began))
            network.append(1000 * (engine.seconds.network - before))
    engine.abort(answers)
    return {"step": median(whole), "network": median(network)}


def benchmark(report: Report, name: str, target: TorchTarget, drafter: Drafter, size: Size) -> None:
    graphs = target.graphs

    def both(measure: Callable[[], dict[str, float]]) -> Iterator[tuple[str, list[str]]]:
        found = []
        for kind in (None, graphs):
            target.graphs = kind
            found.append(measure())
        for what in found[0]:
            yield what, [f"{one[what]:.2f} ms" for one in found]

    def passes(rows: int) -> None:
        for _, times in both(lambda: {"pass": time_pass(target, rows, size)}):
            report.lines.append((name, "target pass, rows", f"{rows}", *times))

    def steps(streams: int) -> None:
        plain = both(lambda: time_steps(target, drafter, streams, NONE, size))
        report.lines.append((name, "step without drafts, streams", f"{streams}", *next(plain)[1]))
        for what, times in both(lambda: time_steps(target, drafter, streams, NETWORK, size)):
            shown = "step with full trees" if what == "step" else "drafter's pass in it"
            report.lines.append((name, f"{shown}, streams", f"{streams}", *times))

    for rows in size.rows:
        report.part(f"{name}: passes of {rows} rows", 1, lambda rows=rows: passes(rows))
    for streams in size.streams:
        report.part(f"{name}: steps of {streams} streams", 8, lambda n=streams: steps(n))
    target.graphs = graphs


def check_model(
    report: Report, name: str, target: TorchTarget, drafter: Drafter, size: Size
) -> None:
    def rows() -> None:
        check = check_rows(target)
        report.compared(name, "rows mixed and one at a time", check.compared, check.differing)

    report.part(f"{name}: rows", 15, rows)
    report.part(f"{name}: graphs", 2, lambda: check_graphs(report, name, target, size))
    report.part(f"{name}: answers", 15, lambda: check_answers(report, name, target, drafter, size))


def show(report: Report, device: torch.device, console: Console) -> None:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    table = Table(title=f"peagle on {where}, torch {torch.__version__}, bfloat16")
    table.add_column("model")
    table.add_column("what")
    for heading in ("how many", "without graphs", "with graphs"):
        table.add_column(heading, justify="right")
    for line in report.lines:
        table.add_row(*line)
    console.print(table)
    for part in report.skipped:
        console.print(f"Skipped: {part}")
    console.print(
        f"{report.differing} rows or answers differ. {len(report.skipped)} parts were skipped."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models and few of everything")
    parser.add_argument("--seconds", type=float, default=280, help="nothing begins after them")
    parser.add_argument("--output", type=Path, default=None, help="the table as JSON")
    arguments = parser.parse_args()
    console = Console(width=120)
    try:
        device = choose_device(arguments.device)
    except PeagleError as error:
        print(f"{error} Without a GPU this runs with --device cpu --small.", file=sys.stderr)
        return 2
    size = SHORT if arguments.small else WHOLE
    report = Report(time.perf_counter() + arguments.seconds)

    def checked(name: str, config: DecoderConfig, quantization: Quantization) -> None:
        target = random_target(config, device, quantization)
        check_model(report, name, target, random_drafter(target, layers=1), size)

    def real(quantization: Quantization) -> None:
        # Quantised weights come prepared, or are prepared without a network.
        files = resolve(CATALOG_MODEL).files
        told = {"dtype": "bfloat16"} if quantization == "none" else {"quantization": quantization}
        target = load_target(files, device=arguments.device, backend="torch", **told).model
        assert isinstance(target, TorchTarget)
        drafter = random_drafter(target, layers=1, draft_vocab_size=6000)
        name = f"{CATALOG_MODEL}, {quantization}"
        check_answers(report, name, target, drafter, size)

    def timed(name: str, config: DecoderConfig) -> None:
        target = random_target(config, device)
        positions = max(size.streams) * (size.context + 9 * (size.repeats + 4) + 64)
        drafter = random_drafter(
            target, draft_vocab_size=min(32_000, config.vocab_size),
            budget=pages_for(positions) * page_bytes(replace(config, num_layers=2), torch.float32),
        )  # fmt: skip
        benchmark(report, name, target, drafter, size)
        check_model(report, name, target, drafter, size)

    shape = TINY if arguments.small else SMALL
    kinds: tuple[Quantization, ...] = ("none", "int8", "int4")
    parts: list[tuple[str, float, Callable[[], None]]] = [
        (f"small, {kind}", 10, lambda kind=kind: checked(f"small, {kind}", shape, kind))
        for kind in kinds
    ]
    if is_cached(CATALOG_MODEL):
        parts += [
            (f"{CATALOG_MODEL}, {kind}", 20, lambda kind=kind: real(kind)) for kind in kinds[:2]
        ]
    else:
        report.skipped.append(f"{CATALOG_MODEL} (not in the cache: `peagle pull {CATALOG_MODEL}`)")
    for name, config in (("Llama 3.2 1B shape", LLAMA_1B), ("Llama 3.1 8B shape", LLAMA_8B)):
        used, shown = (TINY, f"{name}, made tiny") if arguments.small else (config, name)
        parts.append((shown, 20, lambda shown=shown, used=used: timed(shown, used)))
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("Checking", total=len(parts))
        for name, needed_s, run in parts:
            progress.update(bar, description=name)
            report.part(name, needed_s, run)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            progress.advance(bar)
    show(report, device, console)
    if arguments.output:
        machine = describe_machine()
        arguments.output.write_text(
            json.dumps({"gpus": machine.gpus, "torch": machine.torch_version, "lines": report.lines,
                        "differing": report.differing, "skipped": report.skipped}, indent=1)
            + "\n",
            "utf-8",
        )  # fmt: skip
    return 1 if report.differing else 0


if __name__ == "__main__":
    sys.exit(main())
