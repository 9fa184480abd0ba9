"""Prove over the public workload that speculation changes no token.

Every answer is first written by a plain loop (one token at a time over a fresh cache), then by the
engine with every kind of drafts, sixteen prompts mixed in a batch and some one at a time. Greedy,
and at temperature 0.8 with seeds 1, 2 and 3; in bfloat16 and float32, or also in int8 and int4.
Networks are the catalog's; a model without one for a method gets one with random weights.

    python scripts/lossless_matrix.py [--max-tokens N] [--dtypes bfloat16 float32] [--part 1/2]
                                      [--output FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from peagle import LLM, SamplingParams
from peagle.catalog import resolve
from peagle.draft.loading import open_drafter
from peagle.draft.network.drafter import Drafter
from peagle.draft.untrained import random_drafter
from peagle.evaluate.machine import describe_machine
from peagle.evaluate.oracle import OracleProposer
from peagle.evaluate.plain import PlainDecoder
from peagle.evaluate.workload import WorkloadPrompt, read_workload
from peagle.quantization import QUANTIZATIONS
from peagle.spec import METHOD_TITLES, NetworkMethod

BATCH = 16
ALONE = 4
KV_CACHE_BYTES = 1 << 30
SAMPLINGS = {"greedy": {}} | {
    f"temperature 0.8, seed {seed}": {"temperature": 0.8, "seed": seed} for seed in (1, 2, 3)
}
TREE = {"adaptive": False}
DRAFTS = {
    "none": {"method": "none"},
    "P-EAGLE": {"method": "peagle", "lookup": False, "corpus": False, **TREE},
    "EAGLE-3": {"method": "eagle3", "lookup": False, "corpus": False, **TREE},
    "lookup + corpus": {"method": "lookup", **TREE},
    "P-EAGLE, lookup + corpus": {"method": "peagle", **TREE},
    "EAGLE-3, lookup + corpus": {"method": "eagle3", **TREE},
    "oracle": {"method": "lookup", **TREE},
    "oracle, wrong at depths 2 and 5": {"method": "lookup", **TREE},
}
CORRUPTED = {"oracle": (), "oracle, wrong at depths 2 and 5": (2, 5)}


def open_networks(llm: LLM, files: Mapping[NetworkMethod, Path]) -> dict[NetworkMethod, Drafter]:
    """Open the catalog's drafter for each method, or make one with random weights."""
    networks: dict[NetworkMethod, Drafter] = {}
    for method in ("peagle", "eagle3"):
        if method in files:
            fingerprint = llm.tokenizer.fingerprint()
            networks[method] = open_drafter(
                files[method], llm.target, fingerprint, budget=KV_CACHE_BYTES
            )
        else:
            networks[method] = random_drafter(llm.target, method=method, draft_vocab_size=6000)
            print(f"{llm.name} has no {METHOD_TITLES[method]} drafter: random weights instead")
    return networks


def answers_of(
    llm: LLM,
    prompts: list[WorkloadPrompt],
    params: list[SamplingParams],
    drafts: str,
    expected: list[list[int]],
) -> tuple[list[list[int]], int, int]:
    """Answer prompts together; give tokens, decode passes and tokens that those wrote."""
    generations = [
        llm.stream(prompt.messages, one, parallel_drafting_spec=DRAFTS[drafts])
        for prompt, one in zip(prompts, params, strict=True)
    ]
    if drafts in CORRUPTED:
        for generation, answer in zip(generations, expected, strict=True):
            generation.sequences[0].proposer = OracleProposer(
                answer, corrupted=CORRUPTED[drafts], vocab_size=llm.target.config.vocab_size
            )
    while not all(generation.finished for generation in generations):
        llm.step()
    statistics = [generation.result.statistics for generation in generations]
    return (
        [generation.result.token_ids for generation in generations],
        sum(one.target_passes for one in statistics),
        sum(one.emitted_tokens for one in statistics),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--max-tokens", type=int, default=None, help="shorten answers to this")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--part", default="1/1", help="which of how many shares of the prompts")
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    share, shares = map(int, arguments.part.split("/"))
    workload = read_workload()[share - 1 :: shares]
    limits = [
        min(prompt.max_tokens or 256, arguments.max_tokens or prompt.max_tokens or 256)
        for prompt in workload
    ]
    shortened = sum(
        limit < (prompt.max_tokens or 256) for limit, prompt in zip(limits, workload, strict=True)
    )
    # Every fifth, and round again, so that a batch mixes categories and lengths.
    mixed = [k for start in range(5) for k in range(start, len(workload), 5)]
    batches = [mixed[k : k + BATCH] for k in range(0, len(mixed), BATCH)]
    batches += [[k] for k in range(0, len(workload), max(1, len(workload) // ALONE))]
    files = resolve(arguments.model).drafters
    rows = []
    started = time.perf_counter()
    with Progress(console=Console(stderr=True)) as progress:
        steps = len(arguments.dtypes) * len(SAMPLINGS) * len(workload) * (2 + len(DRAFTS))
        bar = progress.add_task("Lossless matrix", total=steps)
        for dtype in arguments.dtypes:
            llm = (
                LLM(arguments.model, quantization=dtype)
                if dtype in QUANTIZATIONS
                else LLM(arguments.model, dtype=dtype)
            )
            networks = open_networks(llm, files)
            written: dict[str, list[list[int]]] = {sampling: [] for sampling in SAMPLINGS}
            for prompt, limit in zip(workload, limits, strict=True):
                decoder = PlainDecoder(llm, llm.encode(prompt.messages), limit)
                for sampling, settings in SAMPLINGS.items():
                    one = SamplingParams(max_tokens=limit, **settings)
                    written[sampling].append(decoder.write(one, seed=one.seed or 0))
                    progress.advance(bar, 2)
            for sampling, settings in SAMPLINGS.items():
                params = [SamplingParams(max_tokens=limit, **settings) for limit in limits]
                plain = written[sampling]
                for drafts, block in DRAFTS.items():
                    llm.engine.drafter = networks.get(block["method"])
                    answers = differing = passes = emitted = tokens = 0
                    for batch in batches:
                        found, batch_passes, batch_emitted = answers_of(
                            llm,
                            [workload[k] for k in batch],
                            [params[k] for k in batch],
                            drafts,
                            [plain[k] for k in batch],
                        )
                        passes += batch_passes
                        emitted += batch_emitted
                        for k, answer in zip(batch, found, strict=True):
                            answers += 1
                            tokens += len(answer)
                            if answer != plain[k]:
                                differing += 1
                                progress.console.print(
                                    f"DIFFERS: {dtype}, {sampling}, {drafts}, {workload[k].id}"
                                )
                    progress.advance(bar, len(workload))
                    rows.append({
                        "dtype": dtype, "sampling": sampling, "drafts": drafts,
                        "answers": answers, "tokens": tokens, "differing": differing,
                        "acceptance_length": round(emitted / max(passes, 1), 3),
                    })  # fmt: skip
                    progress.console.print(json.dumps(rows[-1]))
    machine = describe_machine()
    report = {
        "processor": machine.processor,
        "torch": machine.torch_version,
        "part": arguments.part,
        "prompts": len(workload),
        "threads": machine.threads,
        "answers shortened by --max-tokens": shortened,
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "rows": rows,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    answers = sum(row["answers"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    differing = sum(row["differing"] for row in rows)
    print(f"{answers} answers of {tokens} tokens compared with plain decoding: {differing} differ; "
          f"{shortened} of {len(workload)} prompts shortened")  # fmt: skip
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
