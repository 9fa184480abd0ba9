"""The engine's thread: many requests at once, cancelled ones, full queues, failures, draining."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from peagle import LLM, SamplingParams
from peagle.engine.engine import Engine
from peagle.engine.sequence import Sequence as EngineSequence
from peagle.serve.errors import ApiError
from peagle.serve.service import AnswerStream, EngineService
from tests.conftest import FREE

PROMPTS = ["Count to five.", "Name a fish.", "Why is the sky blue?", "Say hello."]


class Recorder:
    """Remembers how many ran and how requests ended."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.ends: list[tuple[AnswerStream, str]] = []

    def stepped(self, llm: LLM, wrote: Sequence[EngineSequence], waiting: int) -> None:
        self.running.append(len(llm.engine.running))

    def ended(self, stream: AnswerStream, outcome: str) -> None:
        self.ends.append((stream, outcome))


@pytest.fixture
def llm(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The model with an engine of its own, for two answers at a time."""
    engine = Engine(smollm2.target, smollm2.target.new_cache(1 << 27), max_concurrent=2)
    engine.costs = FREE
    monkeypatch.setattr(smollm2, "engine", engine)
    return smollm2


def serve(
    llm: LLM,
    work: Callable[[EngineService, Recorder], Awaitable[None]],
    *,
    max_queue: int = 16,
    timeout_s: float = 60.0,
) -> None:
    async def run() -> None:
        recorder = Recorder()
        service = EngineService(
            lambda: llm, max_queue=max_queue, request_timeout_s=timeout_s, observer=recorder
        )
        assert service.state == "loading"
        service.start()
        await asyncio.wrap_future(service.loaded)
        try:
            await work(service, recorder)
        finally:
            service.stop()

    asyncio.run(run())


async def ids(stream: AnswerStream) -> list[int]:
    return [token async for news in stream.pieces() for piece in news for token in piece.token_ids]


def plainly(llm: LLM, prompt: str, params: SamplingParams) -> list[int]:
    return llm.generate(prompt, params, parallel_drafting=False)[0].token_ids


def test_answers_stream_together_and_equal_plain_decoding(llm: LLM) -> None:
    settings = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=10, temperature=0.8, seed=3),
        SamplingParams(max_tokens=14),
        SamplingParams(max_tokens=5, temperature=1.2, seed=4),
    ]
    expected = [plainly(llm, prompt, one) for prompt, one in zip(PROMPTS, settings, strict=True)]

    async def work(service: EngineService, recorder: Recorder) -> None:
        streams = [
            service.submit(llm.prepare(prompt, one), client="me")
            for prompt, one in zip(PROMPTS, settings, strict=True)
        ]
        assert await asyncio.gather(*map(ids, streams)) == expected
        assert max(recorder.running) <= 2
        assert {outcome for _, outcome in recorder.ends} <= {"stop", "length"}
        assert len(recorder.ends) == 4
        assert service.open_requests == 0

    serve(llm, work)
    assert llm.engine.kv_cache.used_bytes == 0


def test_a_cancelled_request_frees_its_place_within_two_steps(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        long = SamplingParams(max_tokens=400, ignore_eos=True)
        gone = service.submit(llm.prepare("Tell me a story.", long), client="gone")
        stays = service.submit(llm.prepare("Tell me a joke.", long), client="stays")
        waits = service.submit(llm.prepare("Name a bird.", long), client="waits")
        async for _ in gone.pieces():
            break
        while 2 not in recorder.running:
            await asyncio.sleep(0.001)
        # Noted before the request leaves, as the engine goes on in its own thread.
        steps = len(recorder.running)
        service.cancel(gone)
        service.cancel(waits)
        while 1 not in recorder.running[steps:]:
            await asyncio.sleep(0.001)
        assert recorder.running.index(1, steps) - steps <= 2
        assert recorder.ends == [(waits, "abort"), (gone, "abort")]
        service.cancel(stays)
        while len(recorder.ends) < 3:
            await asyncio.sleep(0.001)
        assert service.open_requests == 0

    serve(llm, work)
    assert not llm.engine.running
    assert llm.engine.kv_cache.used_bytes == 0


def test_a_full_queue_refuses_and_says_when_to_come_back(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        params = SamplingParams(max_tokens=4)
        streams = [service.submit(llm.prepare("Hi.", params), client="me") for _ in range(3)]
        with pytest.raises(ApiError) as refused:
            service.submit(llm.prepare("Hi.", params), client="me")
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert refused.value.body["error"]["code"] == "queue_full"
        answers = await asyncio.gather(*map(ids, streams))
        assert answers == [plainly(llm, "Hi.", params)] * 3

    serve(llm, work, max_queue=1)


def test_a_request_that_takes_too_long_is_given_up(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        params = SamplingParams(max_tokens=2000, ignore_eos=True)
        stream = service.submit(llm.prepare("Hi.", params), client="me")
        with pytest.raises(ApiError, match=r"longer than 0\.2 s") as caught:
            await ids(stream)
        assert caught.value.status == 504
        service.cancel(stream)
        while not recorder.ends:
            await asyncio.sleep(0.001)

    serve(llm, work, timeout_s=0.2)
    assert llm.engine.kv_cache.used_bytes == 0


def test_an_answer_that_cannot_go_on_fails_alone(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        params = SamplingParams(max_tokens=6)
        bad = llm.prepare("Hi.", params)
        bad.sequences[0].positions = 10**9
        failing = service.submit(bad, client="me")
        fine = service.submit(llm.prepare("Hi.", params), client="me")
        with pytest.raises(ApiError, match="may come to 1000000000 tokens") as caught:
            await ids(failing)
        assert (caught.value.status, caught.value.param) == (400, "max_tokens")
        assert await ids(fine) == plainly(llm, "Hi.", params)

    serve(llm, work)


def test_a_crash_of_a_step_fails_requests_and_the_service(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        submitted = threading.Event()

        def crash() -> list[EngineSequence]:
            # Not before all are submitted: a failed service takes no more.
            submitted.wait(timeout=60)
            raise RuntimeError("the step is broken")

        monkeypatch.setattr(llm.engine, "step", crash)
        streams = [
            service.submit(llm.prepare("Hi.", SamplingParams(max_tokens=6)), client="me")
            for _ in range(4)
        ]
        submitted.set()
        for stream in streams:
            with pytest.raises(ApiError, match="engine has failed") as caught:
                await ids(stream)
            assert caught.value.status == 500
        assert service.state == "failed"
        with pytest.raises(ApiError) as refused:
            _ = service.llm
        assert (refused.value.status, refused.value.code) == (503, "failed")

    serve(llm, work)


def test_draining_ends_what_runs_and_takes_no_more(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        params = SamplingParams(max_tokens=8)
        prepared = [llm.prepare(prompt, params) for prompt in PROMPTS[:3]]
        streams = [service.submit(one, client="me") for one in prepared]
        drained = asyncio.create_task(service.drain(30))
        await asyncio.sleep(0)
        assert service.state == "draining"
        with pytest.raises(ApiError) as refused:
            service.submit(prepared[0], client="me")
        assert (refused.value.status, refused.value.code) == (503, "draining")
        answers = await asyncio.gather(*map(ids, streams))
        assert answers == [plainly(llm, prompt, params) for prompt in PROMPTS[:3]]
        await drained

    serve(llm, work)


def test_what_outlasts_the_grace_time_ends_with_an_error(llm: LLM) -> None:
    async def work(service: EngineService, recorder: Recorder) -> None:
        long = SamplingParams(max_tokens=2000, ignore_eos=True)
        stream = service.submit(llm.prepare("Hi.", long), client="me")
        reading = asyncio.create_task(ids(stream))
        began = time.perf_counter()
        await service.drain(0.1)
        assert time.perf_counter() - began < 2
        with pytest.raises(ApiError, match="shutting down"):
            await reading

    serve(llm, work)


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    def load() -> LLM:
        raise ValueError("no such thing")

    async def run() -> None:
        service = EngineService(load, max_queue=1, request_timeout_s=1)
        service.start()
        with pytest.raises(ValueError, match="no such thing"):
            await asyncio.wrap_future(service.loaded)
        assert service.state == "failed"
        service.stop()

    asyncio.run(run())
