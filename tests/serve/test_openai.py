"""OpenAI's interface, asked by OpenAI's own client: every answer equals plain decoding."""

import concurrent.futures
import json
import time
from typing import Any

import openai
import pytest

from peagle import SamplingParams
from peagle.llm import Choice, Result
from tests.serve.conftest import Served

BEES = [{"role": "user", "content": "Tell me about bees."}]
FISH = [{"role": "user", "content": "Name a fish."}]


def plainly(served: Served, prompt: Any, **fields: Any) -> Result:
    params = SamplingParams(**fields)
    return served.llm.generate([prompt], params, parallel_drafting=False)[0]


def chat(served: Served, messages: Any = BEES, **fields: Any) -> Any:
    return served.openai.chat.completions.create(model=served.llm.name, messages=messages, **fields)


def test_a_chat_completion(served: Served) -> None:
    expected = plainly(served, BEES, max_tokens=24)
    answer = chat(served, max_tokens=24, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == served.llm.name
    assert answer.id.startswith("chatcmpl-")
    assert abs(answer.created - time.time()) < 60
    (choice,) = answer.choices
    assert (choice.index, choice.message.role) == (0, "assistant")
    assert choice.message.content == expected.text
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == 24 + len(expected.prompt_token_ids)


def test_a_stream_equals_plain_decoding_token_by_token(served: Served) -> None:
    expected = plainly(served, BEES, max_tokens=40)
    chunks = list(
        chat(
            served,
            max_completion_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True, "return_speculation": True},
        )
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    first, *written, last = chunks
    assert first.choices[0].delta.role == "assistant"
    assert [token for chunk in written for token in chunk.choices[0].token_ids] == (
        expected.token_ids
    )
    text = "".join(chunk.choices[0].delta.content for chunk in written)
    assert text == expected.text
    assert [chunk.choices[0].finish_reason for chunk in written[:-1]] == [None] * (len(written) - 1)
    assert written[-1].choices[0].finish_reason == expected.finish_reason
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert last.choices == []
    assert last.usage.completion_tokens == 40
    # Several tokens a pass: speculation did run.
    assert last.speculation["method"] == "lookup"
    assert last.speculation["target_passes"] == len(written) - 1
    assert last.speculation["accepted_tokens"] == 40 - len(written)


def test_the_raw_stream_is_server_sent_events(served: Served) -> None:
    body = {"messages": FISH, "max_tokens": 6, "temperature": 0, "stream": True}
    response = served.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == plainly(served, FISH, max_tokens=6).text
    assert "usage" not in chunks[0]


def test_usage_can_come_with_every_chunk(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        chat(served, FISH, max_tokens=6, temperature=0, stream=True, stream_options=options)
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-2:] == [6, 6]


def test_many_answers_with_a_seed(served: Served) -> None:
    told = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.9, "seed": 11, "n": 3}
    expected = plainly(served, FISH, **told)
    texts = [choice.text for choice in expected.choices]
    assert len(set(texts)) == 3
    answer = chat(served, FISH, **told)
    assert [choice.message.content for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    streamed = ["", "", ""]
    for chunk in chat(served, FISH, stream=True, **told):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_negative_seeds_are_seeds(served: Served) -> None:
    expected = plainly(served, FISH, max_tokens=8, temperature=1, seed=2**64 - 5)
    answer = chat(served, FISH, max_tokens=8, seed=-5)
    assert answer.choices[0].message.content == expected.text


@pytest.mark.parametrize(
    "told",
    [
        {"stop": "."},
        {"stop": ["\n", ","], "include_stop_str_in_output": True},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"logit_bias": {504: -100, 338: 5.5}},
        {"temperature": 1.3, "seed": 5, "top_k": 20, "min_p": 0.02},
        {"temperature": 1e-6, "seed": 5},
        {"temperature": 2.0, "seed": 5, "top_p": 1e-9},
        {"min_tokens": 20, "stop_token_ids": [28, 30]},
        {"ignore_eos": True, "skip_special_tokens": False},
    ],
    ids="-".join,
)
def test_settings_reach_the_engine(served: Served, told: dict[str, Any]) -> None:
    fields = {"temperature": 0, **told}
    expected = plainly(served, BEES, max_tokens=30, **fields).choices[0]
    bias = fields.get("logit_bias")
    if bias:
        fields["logit_bias"] = {str(token): value for token, value in bias.items()}
    response = served.http.post(
        "/v1/chat/completions",
        json={"messages": BEES, "max_tokens": 30, "return_token_ids": True, **fields},
    )
    (choice,) = response.json()["choices"]
    assert choice["message"]["content"] == expected.text
    assert choice["token_ids"] == expected.token_ids
    assert choice["finish_reason"] == expected.finish_reason
    assert choice["stop_reason"] == expected.stop_reason


def told_logprobs(served: Served, choice: Choice) -> list[dict[str, Any]]:
    def token(token_id: int, logprob: float) -> dict[str, Any]:
        spelt = served.llm.tokenizer.token_bytes(token_id)
        return {"token": spelt.decode(), "logprob": logprob, "bytes": list(spelt)}

    return [
        {**token(one.token_id, one.logprob), "top_logprobs": [token(*pair) for pair in one.top]}
        for one in choice.logprobs or []
    ]


def test_log_probabilities_of_a_chat(served: Served) -> None:
    expected = plainly(served, FISH, max_tokens=10, logprobs=3).choices[0]
    asked = {"max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    answer = chat(served, FISH, **asked)
    content = [one.model_dump() for one in answer.choices[0].logprobs.content]
    assert content == told_logprobs(served, expected)
    chunks = list(chat(served, FISH, stream=True, **asked))
    streamed = [
        one.model_dump()
        for chunk in chunks
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content
    ]
    assert streamed == content
    alone = chat(served, FISH, max_tokens=2, temperature=0, logprobs=True)
    assert alone.choices[0].logprobs.content[0].top_logprobs == []


def test_text_completions(served: Served) -> None:
    expected = plainly(served, {"prompt": "Once upon a time"}, max_tokens=16)
    answer = served.openai.completions.create(
        model="small", prompt="Once upon a time", temperature=0, logprobs=1
    )
    assert answer.object == "text_completion"
    assert answer.model == "small"
    (choice,) = answer.choices
    assert choice.text == expected.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.top_logprobs is not None
    assert "".join(told.tokens) == expected.text
    assert told.text_offset == [len("".join(told.tokens[:i])) for i in range(16)]
    assert told.token_logprobs == [one[name] for one, name in zip(
        told.top_logprobs, told.tokens, strict=True
    )]  # fmt: skip


def test_prompts_of_all_forms_and_many_at_once(served: Served) -> None:
    prompts = ["Once upon a time", "The sky is blue because"]
    expected = [plainly(served, {"prompt": one}, max_tokens=9).text for one in prompts]
    ids = [served.llm.tokenizer.encode_prompt(one) for one in prompts]
    told = {"model": "small", "max_tokens": 9, "temperature": 0}
    for prompt in (prompts, ids):
        answer = served.openai.completions.create(prompt=prompt, **told)  # type: ignore[call-overload]
        assert [choice.text for choice in answer.choices] == expected
        assert [choice.index for choice in answer.choices] == [0, 1]
    one = served.openai.completions.create(prompt=ids[1], **told)  # type: ignore[call-overload]
    assert one.choices[0].text == expected[1]
    streamed = ["", ""]
    chunks = served.openai.completions.create(prompt=prompts, stream=True, **told)  # type: ignore[call-overload]
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected
    echoed = served.openai.completions.create(prompt=prompts[0], echo=True, **told)  # type: ignore[call-overload]
    assert echoed.choices[0].text == prompts[0] + expected[0]


def test_characters_are_never_split(served: Served) -> None:
    """At this temperature tokens are bytes of many scripts, most of them parts of characters."""
    told = {"max_tokens": 60, "temperature": 2.0, "seed": 1, "ignore_eos": True}
    expected = plainly(served, {"prompt": "😀🎉 日本語"}, **told)
    assert any(ord(character) > 0x7F for character in expected.text)
    body = {"prompt": "😀🎉 日本語", "stream": True, **told}
    text = ""
    with served.http.stream("POST", "/v1/completions", json=body) as response:
        for part in response.iter_raw():
            for event in part.decode("utf-8").split("\n\n"):
                if event.startswith("data: {"):
                    text += json.loads(event.removeprefix("data: "))["choices"][0]["text"]
    assert text == expected.text


def test_how_drafts_are_made_is_told_per_request(served: Served) -> None:
    expected = plainly(served, BEES, max_tokens=30)
    specs: list[dict[str, Any]] = [
        {"method": "none"},
        {"method": "lookup", "num_parallel_trees": 2, "max_tree_nodes": 7, "adaptive": False},
        {"method": "lookup", "corpus": False},
    ]
    figures = []
    for spec in specs:
        answer = chat(
            served,
            max_tokens=30,
            temperature=0,
            extra_body={"parallel_drafting_spec": spec, "return_speculation": True},
        )
        assert answer.choices[0].message.content == expected.text
        figures.append(answer.speculation)
    assert [one["method"] for one in figures] == ["none", "lookup", "lookup"]
    assert (figures[0]["target_passes"], figures[0]["acceptance_length"]) == (29, 1.0)
    assert figures[1]["target_passes"] < 29
    assert figures[1]["drafted_tokens"] <= 7 * figures[1]["target_passes"]


def test_many_clients_at_once_each_get_their_own_answer(served: Served) -> None:
    asked = [
        {"max_tokens": 10 + 2 * place, "temperature": 0.7 * (place % 2), "seed": place}
        for place in range(16)
    ]
    prompts = [
        [{"role": "user", "content": f"Tell me about the number {place}."}] for place in range(16)
    ]
    expected = [plainly(served, p, **one).text for p, one in zip(prompts, asked, strict=True)]

    def ask(place: int) -> str:
        stream = place % 3 > 0
        answer = chat(served, prompts[place], stream=stream, **asked[place])
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == expected
    assert served.llm.engine.kv_cache.used_bytes == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(served: Served, stream: bool) -> None:
    body = {"messages": BEES, "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    http = served.http
    if stream:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_raw())
            assert len(served.llm.engine.running) == 1
    else:
        with pytest.raises(Exception, match="timed out"):
            http.post("/v1/chat/completions", json=body, timeout=0.5)
    http.close()
    until = time.monotonic() + 5
    while served.llm.engine.running and time.monotonic() < until:
        time.sleep(0.01)
    assert served.llm.engine.running == []
    assert served.llm.engine.kv_cache.used_bytes == 0
    assert served.service.open_requests == 0


def test_models_are_listed(served: Served) -> None:
    models = served.openai.models.list().data
    assert [model.id for model in models] == [served.llm.name, "small"]
    assert served.openai.models.retrieve("small").max_model_len == served.llm.context_length  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError) as missing:
        served.openai.models.retrieve("gpt-5")
    assert missing.value.param == "model"
    assert missing.value.code == "model_not_found"


def test_a_developers_message_is_a_systems_message(served: Served) -> None:
    told = [{"role": "system", "content": "Answer in one word."}, *FISH]
    expected = plainly(served, told, max_tokens=8)
    parts = [{"type": "text", "text": "Name a fish."}]
    sent = [
        {"role": "developer", "content": "Answer in one word."},
        {"role": "user", "content": parts},
    ]
    answer = chat(served, sent, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == expected.text
