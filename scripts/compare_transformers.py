"""Compare greedy answers with transformers on the same weights, over the public workload.

Our engine answers every prompt in float32; transformers then reads prompt and answer once. Where
its best token is ours at every place, its own greedy answer would be the same, by induction. Where
they part, its two candidates must lie within 1e-3 of each other.

    python scripts/compare_transformers.py [--model NAME] [--limit PROMPTS]
"""

import argparse
import sys

import torch
from rich.progress import track
from transformers import LlamaConfig, LlamaForCausalLM

from peagle import LLM, SamplingParams
from peagle.catalog import resolve
from peagle.evaluate.workload import read_workload
from peagle.model.prepared import open_checkpoint
from peagle.model.rope import split_pairs

TIE = 1e-3


def reference_of(model: str) -> LlamaForCausalLM:
    """Load the same weights, float32, into transformers."""
    checkpoint = open_checkpoint(resolve(model).files, torch.float32)
    config = checkpoint.config
    written = config.to_hugging_face()
    written.pop("architectures")
    written.pop("model_type")
    state = checkpoint.tensors()
    for name, weight in state.items():
        if name.endswith("q_proj.weight"):
            state[name] = split_pairs(weight, config.num_heads)
        if name.endswith("k_proj.weight"):
            state[name] = split_pairs(weight, config.num_kv_heads)
    if config.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference = LlamaForCausalLM(LlamaConfig(**written)).eval()
    reference.load_state_dict(state)
    return reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--limit", type=int, default=None)
    arguments = parser.parse_args()
    workload = read_workload()[: arguments.limit]
    llm = LLM(arguments.model, dtype="float32")
    results = llm.generate(
        [prompt.messages for prompt in workload],
        [SamplingParams(max_tokens=prompt.max_tokens) for prompt in workload],
    )
    reference = reference_of(arguments.model)
    tokens = ties = 0
    worst = 0.0
    for prompt, result in track(list(zip(workload, results, strict=True)), "Comparing"):
        ids = [*result.prompt_token_ids, *result.token_ids]
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0]
        start = len(result.prompt_token_ids) - 1
        for place, ours in enumerate(result.token_ids):
            row = logits[start + place]
            tokens += 1
            margin = float(row.max() - row[ours])
            if margin > 0:
                ties += 1
                worst = max(worst, margin)
                print(f"{prompt.id}: token {place} is {ours}, transformers prefers "
                      f"{int(row.argmax())} by {margin:.1e}")  # fmt: skip
    print(f"{tokens} tokens of {len(workload)} answers: {tokens - ties} equal, {ties} excused as "
          f"ties, the largest margin among them {worst:.1e} (limit {TIE:.0e})")  # fmt: skip
    if worst > TIE:
        sys.exit(1)


if __name__ == "__main__":
    main()
