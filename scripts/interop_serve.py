"""Answer prompts with vLLM and write down what it drafted; runs in vLLM's own environment.

python scripts/interop_serve.py --target FOLDER --drafter FOLDER --prompts FILE --output FILE
    [--dtype bfloat16|float32] [--depth 7]

The engine runs in this process, so that its model runner can be watched: after every step each
answer's tokens so far and the draft tokens proposed behind them are kept.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

Steps = dict[str, list[tuple[list[int], list[int]]]]


def watch_drafts() -> tuple[Steps, dict[str, list[int]]]:
    """Have every proposal of a model runner kept.

    Returns:
        For each request the tokens that each step wrote and the draft tokens behind them; and its
        prompt. Both are filled while the engine runs.
    """
    steps: Steps = {}
    prompts: dict[str, list[int]] = {}
    propose = GPUModelRunner.propose_draft_token_ids

    def watched(self: Any, scheduled: Any, sampled: torch.Tensor, *rest: Any, **named: Any) -> Any:
        drafts = propose(self, scheduled, sampled, *rest, **named)
        rows = zip(self.input_batch.req_ids, sampled.tolist(), drafts.tolist(), strict=True)
        for index, (request, written, drafted) in enumerate(rows):
            # A request whose prompt has not been read to the end writes nothing yet.
            if self.discard_request_mask.np[index]:
                continue
            prompts[request] = list(self.requests[request].prompt_token_ids)
            # Rows are as long as the longest, rejected draft tokens are -1.
            kept = [token for token in written if token >= 0]
            steps.setdefault(request, []).append((kept, drafted))
        return drafts

    GPUModelRunner.propose_draft_token_ids = watched
    return steps, prompts


def counters(llm: LLM) -> Mapping[str, Any]:
    """Read vLLM's own counters of speculation."""
    names = {
        "vllm:spec_decode_num_drafts": "drafts",
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted_at",
    }
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        if metric.name in names:
            found[names[metric.name]] = metric.values if hasattr(metric, "values") else metric.value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--context-length", type=int, default=2048)
    arguments = parser.parse_args()
    asked = json.loads(arguments.prompts.read_text("utf-8"))
    steps, prompts = watch_drafts()
    llm = LLM(
        model=arguments.target,
        dtype=arguments.dtype,
        max_model_len=arguments.context_length,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config={
            "method": "eagle3",
            "model": arguments.drafter,
            "num_speculative_tokens": arguments.depth,
            "parallel_drafting": True,
        },
    )
    started = time.perf_counter()
    results = llm.generate(
        [{"prompt_token_ids": one["prompt_token_ids"]} for one in asked],
        [SamplingParams(temperature=0, max_tokens=one["max_tokens"]) for one in asked],
    )
    seconds = time.perf_counter() - started
    by_prompt = {tuple(prompts[request]): found for request, found in steps.items()}
    written = {
        "vllm": vllm.__version__,
        "dtype": arguments.dtype,
        "drafter": arguments.drafter,
        "seconds": seconds,
        "counters": counters(llm),
        "answers": [
            {
                "token_ids": list(result.outputs[0].token_ids),
                "steps": by_prompt[tuple(one["prompt_token_ids"])],
            }
            for one, result in zip(asked, results, strict=True)
        ],
    }
    arguments.output.write_text(json.dumps(written) + "\n", "utf-8")
    print(f"vLLM {vllm.__version__} wrote {sum(len(a['token_ids']) for a in written['answers'])} "
          f"tokens in {seconds:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
