"""The Python front door on the real model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from peagle import LLM, ParallelDraftingSpec, PeagleError, SamplingParams
from peagle.draft.storage import save_drafter
from peagle.draft.untrained import random_drafter, random_tensors
from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.sequence import Origin
from peagle.errors import InvalidRequestError, ModelNotFoundError, OutOfMemoryBudgetError
from peagle.spec import NetworkMethod
from tests.conftest import MODEL

SHORT = SamplingParams(max_tokens=6)


def test_a_string_is_a_users_message(smollm2: LLM) -> None:
    conversation = [{"role": "user", "content": "Say hello."}]
    assert smollm2.encode("Say hello.") == smollm2.encode(conversation)
    assert smollm2.tokenizer.decode(smollm2.encode("Say hello."), skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_and_tokens_can_be_given_as_they_are(smollm2: LLM) -> None:
    ids = smollm2.tokenizer.encode("Once upon a")
    by_text, by_ids = smollm2.generate(
        [{"prompt": "Once upon a"}, {"prompt_token_ids": ids}], SHORT
    )
    assert by_text.prompt_token_ids == ids
    assert by_text.token_ids == by_ids.token_ids
    assert by_text.text.startswith(" time")


def test_one_conversation_and_a_list_of_prompts_are_told_apart(smollm2: LLM) -> None:
    conversation = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada!"},
        {"role": "user", "content": "What is my name?"},
    ]
    assert len(smollm2.generate(conversation, SHORT)) == 1
    assert len(smollm2.generate([conversation, "Say hello."], SHORT)) == 2


def test_results_say_what_happened(smollm2: LLM) -> None:
    result = smollm2.generate("Say hello.", SamplingParams(max_tokens=40))[0]
    assert result.finish_reason == "stop"
    assert result.token_ids[-1] == 2
    assert result.text == smollm2.tokenizer.decode(result.token_ids)
    assert result.method == smollm2.spec.method
    choice = result.choices[0]
    assert len(choice.origins) == len(choice.token_ids)
    drafted = sum(origin is not Origin.TARGET for origin in choice.origins)
    assert drafted == choice.statistics.accepted_tokens
    assert choice.statistics.emitted_tokens == len(choice.token_ids) - 1
    assert 0 < result.timing.ttft_s < 60
    assert result.timing.tokens_per_s > 0


def test_a_stream_gives_the_text_of_generate_piece_by_piece(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=40)
    generation = smollm2.stream("Name three colours and an emoji.", params)
    pieces = list(generation)
    whole = smollm2.generate("Name three colours and an emoji.", params)[0]
    assert "".join(piece.text for piece in pieces) == whole.text == generation.result.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == whole.finish_reason
    assert all(piece.finish_reason is None for piece in pieces[:-1])


def test_a_drawn_seed_is_reported_and_repeats_the_answer(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0)
    first = smollm2.generate("Tell me something.", params)[0]
    again = smollm2.generate("Tell me something.", params.replaced(seed=first.seed))[0]
    assert again.token_ids == first.token_ids
    assert smollm2.generate("Tell me something.", params)[0].seed != first.seed


def test_the_same_prompt_with_many_seeds_and_one(smollm2: LLM) -> None:
    prompts = ["Write one word."] * 8
    same = smollm2.generate(prompts, SamplingParams(max_tokens=6, temperature=1.2, seed=3))
    assert len({tuple(result.token_ids) for result in same}) == 1
    many = [SamplingParams(max_tokens=6, temperature=1.2, seed=seed) for seed in range(8)]
    varied = smollm2.generate(prompts, many)
    assert len({tuple(result.token_ids) for result in varied}) > 3
    assert varied[3].token_ids == same[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The prompt is empty"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
        ({"prompt_token_ids": []}, "The prompt is empty"),
        ({"prompt_token_ids": [1, 49_152]}, r"holds 49152.*0 to 49151"),
        ({"prompt_token_ids": [True]}, "holds True"),
        ({"text": "hello"}, "'text'"),
        ({"prompt": "a", "other": 1}, "'prompt', 'other'"),
        ({"prompt_token_ids": [5] * 9000}, r"9000 tokens.*takes 8192"),
    ],
)
def test_impossible_prompts_are_refused(smollm2: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        smollm2.generate(prompt, SHORT)


def test_a_bad_prompt_among_good_ones_is_refused_before_anything_runs(smollm2: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        smollm2.generate(["Say hello.", ""], SHORT)
    assert not smollm2.engine.waiting
    assert not smollm2.engine.running


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 10_000}, r"max_tokens is 10000.*8192.*Lower max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens is 6"),
        ({"stop_token_ids": (50_000,)}, "stop_token_ids"),
        ({"logit_bias": {49_152: 1.0}}, "logit_bias"),
    ],
)
def test_settings_beyond_the_model_are_refused(
    smollm2: LLM, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        smollm2.generate("Say hello.", SamplingParams(**fields))


def test_prompts_and_params_must_match_in_number(smollm2: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts but 1 sampling"):
        smollm2.generate(["a", "b"], [SHORT])


def test_the_method_is_the_catalogs_unless_told_otherwise(smollm2: LLM) -> None:
    def method(spec: Any = None, *, on: bool = True) -> str:
        return smollm2.generate(
            "Say hello.", SHORT, parallel_drafting_spec=spec, parallel_drafting=on
        )[0].method

    assert method() == "lookup"
    assert method({"max_tree_nodes": 3}) == "lookup"
    assert method(ParallelDraftingSpec(method="none")) == "none"
    assert method(on=False) == "none"


@pytest.mark.parametrize("method", ["peagle", "eagle3"])
def test_the_catalog_has_a_drafter_for_each_method(smollm2: LLM, method: NetworkMethod) -> None:
    # Pinned, since an adaptive tree leaves the network alone where it does not pay.
    llm = LLM(MODEL, parallel_drafting_spec={"method": method, "adaptive": False})
    assert llm.spec.method == method
    drafter = llm.engine.drafter
    assert drafter is not None
    assert (drafter.method, drafter.name) == (method, f"{MODEL}-{method}")
    result = llm.generate("Name three primary colours.", SHORT)[0]
    assert result.statistics.draft_passes > 0
    plain = smollm2.generate("Name three primary colours.", SHORT, parallel_drafting=False)[0]
    assert result.token_ids == plain.token_ids


def test_pass_costs_are_kept_apart_for_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Mapping[str, Any]] = []

    def keep(what: Mapping[str, Any], *_: Callable[..., Any]) -> StepCosts:
        kept.append(what)
        return StepCosts(target=CostCurve(rows=(1,), seconds=(0.1,)))

    monkeypatch.setattr("peagle.llm.llm.kept_costs", keep)
    for told in ({"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}):
        LLM(MODEL, **told)
    precisions = [what["precision"] for what in kept]
    assert (precisions[0], len(set(precisions))) == ("bfloat16", 3)
    first = {**kept[0], "precision": None, "rows_per_pass": None}
    assert all({**what, "precision": None, "rows_per_pass": None} == first for what in kept)
    assert first["backend"] == LLM(MODEL).target.backend


def test_peagle_without_a_drafter_is_refused_not_replaced(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2.engine, "drafter", None)
    with pytest.raises(InvalidRequestError, match='"peagle", but smollm2-135m-instruct has no'):
        smollm2.generate("Say hello.", SHORT, parallel_drafting_spec={"method": "peagle"})


@pytest.mark.parametrize(("own", "other"), [("eagle3", "peagle"), ("peagle", "eagle3")])
def test_the_drafter_decides_the_method(smollm2: LLM, tmp_path: Path, own: Any, other: str) -> None:
    network = random_drafter(
        smollm2.target,
        method=own,
        layers=1,
        draft_vocab_size=100,
        fingerprint=smollm2.tokenizer.fingerprint(),
    ).network
    file = tmp_path / "mine.safetensors"
    save_drafter(file, network.config, random_tensors(network.config, 0))
    llm = LLM(MODEL, drafter=file)
    assert llm.spec.method == own
    assert llm.generate("Say hello.", SHORT)[0].method == own
    lookup = llm.generate("Say hello.", SHORT, parallel_drafting_spec={"method": "lookup"})[0]
    assert lookup.statistics.draft_passes == 0
    message = f'method is "{other}", but the drafter mine is for "{own}"'
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate("Say hello.", SHORT, parallel_drafting_spec={"method": other})
    with pytest.raises(InvalidRequestError, match=message):
        LLM(MODEL, drafter=file, parallel_drafting_spec={"method": other})


def test_a_spec_with_a_mistake_is_refused(smollm2: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="unknown key 'trees'"):
        smollm2.generate("Say hello.", SHORT, parallel_drafting_spec={"trees": 4})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "smollm3"}, ModelNotFoundError, "smollm3"),
        ({"model": MODEL, "dtype": "float64"}, InvalidRequestError, "'float64'"),
        ({"model": MODEL, "quantization": "q4"}, InvalidRequestError, "'q4'"),
        (
            {"model": MODEL, "quantization": "int4", "dtype": "float32"},
            InvalidRequestError,
            "Leave one of them out",
        ),
        ({"model": MODEL, "device": "cuda:9"}, InvalidRequestError, "CUDA devices"),
        ({"model": MODEL, "kv_cache_bytes": 1000}, OutOfMemoryBudgetError, "1,000"),
        ({"model": MODEL, "max_concurrent": 0}, InvalidRequestError, "max_concurrent"),
        ({"model": MODEL, "drafter": "/nowhere.safetensors"}, PeagleError, "nowhere"),
        ({"model": MODEL, "parallel_drafting_spec": "{"}, InvalidRequestError, "JSON"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(**arguments)


def test_a_drafter_file_is_found_by_path(tmp_path: Path) -> None:
    with pytest.raises(PeagleError, match=str(tmp_path)):
        LLM(MODEL, drafter=tmp_path)


def test_pieces_carry_log_probabilities_and_the_reason_of_the_end(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=60, logprobs=2, stop=["."])
    whole = smollm2.generate("Name a fish.", params)[0].choices[0]
    pieces = list(smollm2.stream("Name a fish.", params))
    assert [one for piece in pieces for one in piece.logprobs or []] == whole.logprobs
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == ("stop", ".")
    assert pieces[0].stop_reason is None


def test_what_is_prepared_runs_once_it_is_queued(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=5)
    generation = smollm2.prepare("Name a fish.", params)
    assert not smollm2.engine.waiting
    smollm2.queue(generation)
    wrote = [smollm2.step() for _ in range(20) if not generation.finished]
    assert wrote[-1] == generation.sequences
    assert generation.result.token_ids == smollm2.generate("Name a fish.", params)[0].token_ids
