"""A SageMaker endpoint, asked by boto3: every answer equals plain decoding."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from peagle import SamplingParams
from peagle.llm import Result
from tests.serve.conftest import Served

STORY = "Once upon a time"
FISH = [{"role": "user", "content": "Name a fish."}]


def plainly(served: Served, prompt: Any, **fields: Any) -> Result:
    params = SamplingParams(**{"max_tokens": 12, **fields})
    return served.llm.generate([prompt], params, parallel_drafting=False)[0]


def continued(served: Served, **fields: Any) -> Result:
    return plainly(served, {"prompt": STORY}, **fields)


def invoke(client: Any, body: Any, name: str = "small", **fields: Any) -> Any:
    answer = client.invoke_endpoint(EndpointName=name, Body=json.dumps(body), **fields)
    assert answer["ContentType"] == "application/json"
    return json.loads(answer["Body"].read())


def generate(client: Any, parameters: dict[str, Any], inputs: Any = STORY) -> Any:
    return invoke(client, {"inputs": inputs, "parameters": {"max_new_tokens": 12, **parameters}})


def parts(client: Any, body: Any, **fields: Any) -> list[bytes]:
    answer = client.invoke_endpoint_with_response_stream(
        EndpointName="small", Body=json.dumps(body), **fields
    )
    return [event["PayloadPart"]["Bytes"] for event in answer["Body"]]


def events(stream: list[bytes]) -> list[Any]:
    told = b"".join(stream).decode().split("\n\n")
    assert told.pop() == ""
    return [json.loads(one.removeprefix("data:")) for one in told]


def refused(client: Any, body: Any, name: str = "small", **fields: Any) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body)
    with pytest.raises(ClientError) as caught:
        client.invoke_endpoint(EndpointName=name, Body=content, **fields)
    return caught.value.response  # type: ignore[return-value]


def test_text_is_continued_greedily_unless_told_otherwise(served: Served, client: Any) -> None:
    assert generate(client, {}) == [{"generated_text": continued(served).text}]
    usual = continued(served, max_tokens=100).text
    assert invoke(client, {"inputs": STORY}) == [{"generated_text": usual}]


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        ({"do_sample": True, "seed": 7}, {"temperature": 1.0, "seed": 7}),
        ({"temperature": 0.8, "seed": 7}, {"temperature": 0.8, "seed": 7}),
        ({"top_k": 5, "seed": 8}, {"temperature": 1.0, "top_k": 5, "seed": 8}),
        ({"top_p": 0.9, "seed": 8}, {"temperature": 1.0, "top_p": 0.9, "seed": 8}),
        ({"do_sample": False, "temperature": 0.8, "top_p": 0.9}, {}),
        ({"temperature": 0}, {}),
        ({"temperature": 1.0}, {}),
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        (
            {"stop": [" girl", ","], "max_new_tokens": 30},
            {"stop": [" girl", ","], "include_stop_str_in_output": True, "max_tokens": 30},
        ),
        ({"best_of": 1, "watermark": False, "typical_p": None, "seed": None}, {}),
        ({"parallel_drafting_spec": {"method": "none"}}, {}),
    ],
    ids=str,
)
def test_parameters_reach_the_engine(
    served: Served, client: Any, told: dict[str, Any], fields: dict[str, Any]
) -> None:
    expected = continued(served, **fields)
    (answer,) = generate(client, told)
    assert answer == {"generated_text": expected.text}


def test_the_prompt_can_stand_before_the_answer(served: Served, client: Any) -> None:
    told = generate(client, {"return_full_text": True})
    assert told == [{"generated_text": STORY + continued(served).text}]


def test_many_inputs_are_answered_together(served: Served, client: Any) -> None:
    prompts = [STORY, "The sky is blue because"]
    expected = [plainly(served, {"prompt": one}).text for one in prompts]
    assert generate(client, {}, prompts) == [{"generated_text": text} for text in expected]


def token(served: Served, token_id: int, logprob: float, text: str) -> dict[str, Any]:
    special = token_id in served.llm.tokenizer.special_ids
    return {"id": token_id, "text": text, "logprob": logprob, "special": special}


def test_details_tell_every_token(served: Served, client: Any) -> None:
    expected = continued(served, temperature=0.9, seed=5, logprobs=2)
    (answer,) = generate(
        client, {"temperature": 0.9, "seed": 5, "details": True, "top_n_tokens": 2}
    )
    details = answer["details"]
    spelt = served.llm.tokenizer.token_bytes
    logprobs = expected.choices[0].logprobs or []
    assert details["finish_reason"] == "length"
    assert details["generated_tokens"] == 12
    assert details["seed"] == 5
    assert details["prefill"] == []
    assert details["tokens"] == [
        token(served, one.token_id, one.logprob, spelt(one.token_id).decode()) for one in logprobs
    ]
    assert details["top_tokens"] == [
        [token(served, *pair, spelt(pair[0]).decode()) for pair in one.top] for one in logprobs
    ]


def test_why_an_answer_ended_is_told_as_these_containers_do(served: Served, client: Any) -> None:
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    expected = plainly(served, {"prompt": chat}, max_tokens=60)
    assert expected.finish_reason == "stop"
    (answer,) = generate(client, {"details": True, "max_new_tokens": 60}, chat)
    assert answer["generated_text"] == expected.text
    details = answer["details"]
    assert (details["finish_reason"], details["seed"]) == ("eos_token", None)
    last = details["tokens"][-1]
    assert (last["text"], last["special"]) == ("<|im_end|>", True)
    told = "".join(one["text"] for one in details["tokens"] if not one["special"])
    assert told == expected.text
    (answer,) = generate(client, {"details": True, "stop": [","], "max_new_tokens": 60})
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert answer["generated_text"].endswith(",")


@pytest.mark.parametrize(
    "told",
    [
        {"seed": 1, "temperature": 2.0, "max_new_tokens": 60},
        {"stop": ["ir"], "max_new_tokens": 40},
    ],
    ids=["bytes", "stop"],
)
def test_a_stream_gives_token_after_token(
    served: Served, client: Any, told: dict[str, Any]
) -> None:
    """The first has characters of several tokens; the second ends within a token."""
    fields = {**told, "include_stop_str_in_output": True, "logprobs": 0}
    fields["max_tokens"] = fields.pop("max_new_tokens")
    expected = continued(served, **fields)
    parameters = {**told, "details": True, "return_full_text": True}
    stream = parts(client, {"inputs": STORY, "parameters": parameters, "stream": True})
    # A part is a step's: speculation makes fewer of them, and none of them cuts a line.
    assert all(part.endswith(b"\n\n") for part in stream)
    told_events = events(stream)
    assert len(stream) < len(told_events) or "seed" in told
    assert [one["token"]["id"] for one in told_events] == expected.token_ids
    assert [one["index"] for one in told_events] == [*range(1, len(told_events) + 1)]
    logprobs = [one.logprob for one in expected.choices[0].logprobs or []]
    assert [one["token"]["logprob"] for one in told_events] == logprobs
    assert "".join(one["token"]["text"] for one in told_events) == expected.text
    assert all(one["generated_text"] is None for one in told_events[:-1])
    last = told_events[-1]
    assert last["generated_text"] == STORY + expected.text
    assert last["details"] == {
        "finish_reason": "length" if expected.finish_reason == "length" else "stop_sequence",
        "generated_tokens": len(expected.token_ids),
        "seed": told.get("seed"),
        "input_length": len(expected.prompt_token_ids),
    }


def test_statistics_of_speculation_come_when_asked(served: Served, client: Any) -> None:
    told = {"max_new_tokens": 40, "return_speculation": True}
    (answer,) = generate(client, told)
    figures = answer["speculation"]
    assert figures["method"] == "lookup"
    assert figures["target_passes"] < 39
    (*_, last) = events(parts(client, {"inputs": STORY, "parameters": told, "stream": True}))
    assert last["speculation"]["accepted_tokens"] == figures["accepted_tokens"]


def test_conversations_and_text_are_answered_as_openai_does(served: Served, client: Any) -> None:
    expected = plainly(served, FISH)
    body = {"messages": FISH, "max_tokens": 12, "temperature": 0}
    answer = invoke(client, body)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == expected.text
    text = invoke(client, {"prompt": STORY, "max_tokens": 12, "temperature": 0})
    assert text["choices"][0]["text"] == continued(served).text
    stream = b"".join(parts(client, {**body, "stream": True})).decode().split("\n\n")
    assert stream[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(one.removeprefix("data: ")) for one in stream[:-2]]
    told = "".join(one["choices"][0]["delta"]["content"] for one in chunks)
    assert told == expected.text


def test_answers_keep_their_form_whichever_call_asks(served: Served, client: Any) -> None:
    body = {"inputs": STORY, "parameters": {"max_new_tokens": 12}}
    whole = client.invoke_endpoint_with_response_stream(EndpointName="small", Body=json.dumps(body))
    assert whole["ContentType"] == "application/json"
    assert whole["InvokedProductionVariant"] == "AllTraffic"
    (part,) = [event["PayloadPart"]["Bytes"] for event in whole["Body"]]
    assert json.loads(part) == [{"generated_text": continued(served).text}]
    streamed = client.invoke_endpoint(
        EndpointName="small", Body=json.dumps({**body, "stream": True})
    )
    assert streamed["ContentType"] == "text/event-stream; charset=utf-8"
    assert events([streamed["Body"].read()])[-1]["generated_text"] == continued(served).text
    asked = client.invoke_endpoint_with_response_stream(
        EndpointName="small", Body=json.dumps({**body, "stream": True})
    )
    assert asked["ContentType"] == "text/event-stream; charset=utf-8"
    asked["Body"].close()


def test_the_container_answers_without_an_endpoint(served: Served) -> None:
    assert served.http.get("/ping").json() == {"status": "ready"}
    body = {"inputs": STORY, "parameters": {"max_new_tokens": 12}}
    answer = served.http.post("/invocations", json=body)
    assert answer.json() == [{"generated_text": continued(served).text}]
    wrong = served.http.post("/invocations", json={"inputs": STORY, "parameters": {"top_k": 0}})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "parameters.top_k"


def test_attributes_come_back_and_the_variant_is_told(served: Served, client: Any) -> None:
    answer = client.invoke_endpoint(
        EndpointName=served.llm.name,
        Body=json.dumps({"messages": FISH, "max_tokens": 1}),
        ContentType="application/json",
        Accept="application/json",
        CustomAttributes="trace=17; accept_eula=true",
        InferenceId="call-17",
        TargetVariant="AllTraffic",
        PrefixAwareId="conversation-4",
    )
    assert answer["CustomAttributes"] == "trace=17; accept_eula=true"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "llama"}, "Endpoint llama not found. Endpoints here: smollm2-135m-instruct"),
        ({"name": "hf:some/model"}, "Endpoint hf:some/model not found"),
        ({"TargetVariant": "blue"}, "Variant 'blue' not found"),
        ({"TargetModel": "a.tar.gz"}, "Leave TargetModel out"),
        ({"TargetContainerHostname": "c"}, "Leave TargetContainerHostname out"),
        ({"InferenceComponentName": "c"}, "Leave InferenceComponentName out"),
        ({"SessionId": "NEW_SESSION"}, "Leave SessionId out"),
        ({"EnableExplanations": "`true`"}, "Leave EnableExplanations out"),
        ({"CustomAttributes": "x" * 1025}, "CustomAttributes cannot be"),
        ({"InferenceId": "x" * 65}, "InferenceId cannot be"),
    ],
    ids=lambda one: str(*one) if isinstance(one, dict) else "",
)
def test_what_the_endpoint_has_not_is_a_validation_error(
    client: Any, fields: dict[str, Any], message: str
) -> None:
    response = refused(client, {"inputs": STORY}, **fields)
    assert response["Error"]["Code"] == "ValidationError"
    assert message in response["Error"]["Message"]
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_bodies_beyond_the_limit_are_a_validation_error(client: Any) -> None:
    error = refused(client, b"x" * 5_000_000)["Error"]
    assert error["Code"] == "ValidationError"
    assert "larger than 4,194,304 bytes" in error["Message"]


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"inputs": STORY, "parameters": {"max_new_tokens": -1}}, "parameters.max_new_tokens", 400),
        ({"inputs": "x", "parameters": {"max_new_tokens": 9**9}}, "parameters.max_new_tokens", 400),
        ({"inputs": STORY, "parameters": {"typical_p": 0.5}}, "parameters.typical_p", 400),
        ({"inputs": STORY, "parameters": {"watermark": True}}, "parameters.watermark", 400),
        ({"inputs": STORY, "parameters": {"stop": [""]}}, "parameters.stop", 400),
        ({"inputs": STORY, "parameters": []}, "parameters", 400),
        (
            {"inputs": STORY, "parameters": {"parallel_drafting_spec": {"max_tree_nodes": 0}}},
            "parameters.parallel_drafting_spec.max_tree_nodes",
            400,
        ),
        ({"inputs": STORY, "options": {}}, "options", 400),
        ({"inputs": 5}, "inputs", 400),
        ({"inputs": ""}, "inputs", 400),
        ({"inputs": [STORY], "stream": True}, None, 400),
        ({"inputs": STORY, "messages": FISH}, "messages", 400),
        ({"text": STORY}, "inputs", 400),
        ({"messages": [], "max_tokens": 1}, "messages", 400),
        ({"messages": FISH, "model": "gpt-5"}, "model", 404),
    ],
)  # fmt: skip
def test_what_the_container_refuses_is_a_model_error(
    client: Any, body: Any, param: str | None, status: int
) -> None:
    response = refused(client, body)
    assert response["Error"]["Code"] == "ModelError"
    assert f"Received client error ({status}) from primary" in response["Error"]["Message"]
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["OriginalStatusCode"] == status
    original = json.loads(response["OriginalMessage"])["error"]
    assert original["param"] == param
    assert original["message"]


def test_errors_have_classes_and_come_before_a_stream_does(client: Any) -> None:
    with pytest.raises(client.exceptions.ModelError):
        client.invoke_endpoint_with_response_stream(EndpointName="small", Body=b"{")
    with pytest.raises(client.exceptions.ValidationError):
        client.invoke_endpoint_with_response_stream(EndpointName="other", Body=b"{}")


def test_unknown_operations_are_told_in_aws_shape(served: Served) -> None:
    answer = served.http.post("/endpoints/small/async-invocations", json={})
    assert answer.status_code == 404
    assert answer.headers["x-amzn-errortype"] == "UnknownOperationException"
    assert "async-invocations" in answer.json()["message"]
    answer = served.http.get("/endpoints/small/invocations")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
