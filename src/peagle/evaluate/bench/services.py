"""Contenders' services: made, loaded, kept while memory allows, and one of them awake at a time."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from peagle.evaluate.bench.answer import Answer, BenchPrompt
from peagle.evaluate.bench.contenders import Contender, ServiceSpec
from peagle.evaluate.bench.environments import environment_python
from peagle.evaluate.bench.openai_server import OpenAIServer
from peagle.evaluate.bench.process import ProcessService
from peagle.evaluate.bench.service import Service, Started

SERVER: Final = "url"
# Left to the system beside what the next service will want.
_SPARE_BYTES: Final = 1 << 30
_WARM_UP_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class StartUp:
    """How a service started.

    Attributes:
        started: What it said.
        first_token_s: From its start to the first token of the first answer; None for a server.
    """

    started: Started
    first_token_s: float | None


def build_service(
    spec: ServiceSpec, *, threads: int, log_folder: Path, encode: Callable[[str], list[int]]
) -> Service:
    """Make a service, without starting it.

    Raises:
        UnsupportedError: Its environment has not been made.
        InvalidRequestError: Its URL is none.
    """
    if spec.environment == SERVER:
        return OpenAIServer(spec.module, encode, model=spec.settings["model"])
    python = Path(sys.executable)
    variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if spec.environment is not None:
        python = environment_python(spec.environment)
        # Another program must not find our modules.
        variables |= {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    if spec.environment == "vllm":
        cores = sorted(psutil.Process().cpu_affinity() or range(threads))[:threads]
        variables |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(spec.settings["kv_cache_gib"]),
            "VLLM_NO_USAGE_STATS": "1",
        }
    log = log_folder / f"{spec.name.replace('/', '-').replace(' ', '-')}.log"
    return ProcessService(
        spec.name, python, spec.module, spec.settings, environment=variables, log=log
    )


class ServicePool:
    """Starts services and keeps them loaded while memory allows; all but one are paused.

    Args:
        contenders: Who will be asked.
        build: Makes a service.
        warm_up: What is asked after loading, so that first passes are not measured.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        build: Callable[[ServiceSpec], Service],
        warm_up: Sequence[BenchPrompt],
    ) -> None:
        self._contenders = contenders
        # Servers first: that one cannot be reached is known before anything is loaded.
        specs = sorted(
            (one.service for one in contenders), key=lambda spec: spec.environment != SERVER
        )
        self._services = {spec.name: build(spec) for spec in specs}
        self._warm_up = [
            BenchPrompt(one.id, one.category, one.messages, one.token_ids,
                        min(_WARM_UP_TOKENS, one.max_tokens))
            for one in warm_up
        ]  # fmt: skip
        self._loaded: set[str] = set()
        self._awake: str | None = None
        self.start_ups: dict[str, StartUp] = {}
        self.all_loaded = True

    def start_all(self, on_started: Callable[[str], None]) -> None:
        """Start every service once, so that what fails does so before anything is measured.

        Raises:
            PeerError: A service fails.
        """
        largest = 0
        for name, service in self._services.items():
            self._wake(name)
            largest = max(largest, service.held_bytes())
            on_started(name)
            if psutil.virtual_memory().available < largest + _SPARE_BYTES:
                self.all_loaded = False
                self._stop(name)
        if not self.all_loaded:
            self.stop_all()

    def awake(self, contender: Contender) -> Service:
        """Give the service of a contender, loaded and awake; no other one is.

        Raises:
            PeerError: It cannot be loaded.
        """
        name = contender.service.name
        if not self.all_loaded:
            for other in self._loaded - {name}:
                self._stop(other)
        self._wake(name)
        return self._services[name]

    def stop_all(self) -> None:
        """End every service."""
        for name in list(self._loaded):
            self._stop(name)

    def _wake(self, name: str) -> None:
        if self._awake == name:
            return
        if self._awake is not None:
            self._services[self._awake].pause()
        self._awake = name
        if name in self._loaded:
            self._services[name].resume()
            return
        self._loaded.add(name)
        service = self._services[name]
        started = service.start()
        first: Answer | None = None
        for contender in self._contenders:
            if contender.service.name == name:
                batch = service.answer(
                    self._warm_up, len(self._warm_up), contender.request, lambda: None
                )
                first = first or batch.answers[0]
        if name not in self.start_ups:
            assert first is not None
            known = started.seconds
            self.start_ups[name] = StartUp(started, None if known is None else known + first.ttft_s)

    def _stop(self, name: str) -> None:
        self._loaded.discard(name)
        if self._awake == name:
            self._awake = None
        self._services[name].stop()


def named(contenders: Sequence[Contender]) -> Mapping[str, Contender]:
    """Give contenders by name."""
    return {one.name: one for one in contenders}
