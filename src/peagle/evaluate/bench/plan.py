"""From what the user asks for to contenders that can be started."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peagle.catalog.resolution import ResolvedModel
from peagle.draft.storage import read_config
from peagle.errors import InvalidRequestError, UnsupportedError
from peagle.evaluate.bench.contenders import (
    OFF,
    OWN,
    PEERS,
    QUANTIZATIONS,
    Contender,
    ServiceSpec,
    own_name,
)
from peagle.evaluate.bench.environments import environment_python
from peagle.evaluate.bench.exports import drafter_folder, target_folder
from peagle.evaluate.bench.services import SERVER
from peagle.llm import LLM

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Sources:
    """What there is to draft from.

    Attributes:
        peagle: A P-EAGLE drafter; None if there is none.
        eagle3: An EAGLE-3 drafter; None if there is none.
        corpus: A corpus; None if there is none.
    """

    peagle: Path | None
    eagle3: Path | None
    corpus: Path | None

    def lacking(self, configuration: str) -> str | None:
        """Say which option would give what a configuration of ours needs and is not there."""
        spec = OWN[configuration] or {}
        needed = {
            "drafter": (spec.get("method") == "peagle", self.peagle),
            "eagle3": (spec.get("method") == "eagle3", self.eagle3),
            "corpus": (bool(spec.get("corpus")), self.corpus),
        }
        for option, (wanted, there) in needed.items():
            # A network with text sources still has the request's own text.
            if wanted and there is None and not (option == "corpus" and "eagle" in spec["method"]):
                return option
        return None


def check_method(drafter: Path | None, method: str, option: str) -> None:
    """Refuse a drafter of the other method.

    Raises:
        CheckpointError: It cannot be read.
        InvalidRequestError: It is of another method.
    """
    # Public folders are read when they are loaded.
    if drafter is None or drafter.is_dir():
        return
    found = read_config(drafter).method
    if found != method:
        raise InvalidRequestError(
            f"--{option} {drafter} is a drafter for {found}, not for {method}.",
            remedy=f"Give it with --{'eagle3' if found == 'eagle3' else 'drafter'}.",
            field=option,
        )


def available_quantizations() -> list[str]:
    """Quantisations that this installation runs."""
    known = "quantization" in inspect.signature(LLM).parameters
    return list(QUANTIZATIONS) if known else ["none"]


def own_contenders(
    names: Sequence[str],
    quantizations: Sequence[str],
    model: str,
    sources: Sources,
    *,
    threads: int,
    max_concurrent: int,
) -> list[Contender]:
    """Make contenders of our own configurations.

    Plain decoding is added where it was left out: it is what their tokens are compared with.

    Raises:
        InvalidRequestError: A configuration lacks its drafter or corpus.
        UnsupportedError: This installation does not run a quantisation.
    """
    for name in names:
        lacking = sources.lacking(name)
        if lacking is not None:
            raise InvalidRequestError(
                f"--configurations holds {name}, but there is no "
                f"{'corpus' if lacking == 'corpus' else 'drafter for it'}.",
                remedy=f"Give one with --{lacking}, or leave {name} out.",
                field="configurations",
            )
    can = available_quantizations()
    for quantization in quantizations:
        if quantization not in can:
            raise UnsupportedError(
                f"This installation does not run {quantization} models.",
                remedy=f"Choose among {', '.join(can)}.",
                field="quantizations",
            )
    wanted = [OFF, *(name for name in names if name != OFF)] if names else []
    found = []
    for quantization in quantizations:
        precision = (
            {"dtype": "bfloat16"} if quantization == "none" else {"quantization": quantization}
        )
        for name in wanted:
            spec = OWN[name]
            method = spec["method"] if spec else "none"
            drafter = sources.eagle3 if method == "eagle3" else sources.peagle
            # The text sources and plain decoding share the process of the P-EAGLE drafter.
            network = "eagle3" if method == "eagle3" else "peagle"
            service = ServiceSpec(
                f"peagle {own_name(network, quantization)}",
                None,
                "run_peagle",
                {
                    "model": model,
                    "drafter": None if drafter is None else str(drafter),
                    "corpus": None if sources.corpus is None else str(sources.corpus),
                    "threads": threads,
                    "max_concurrent": max_concurrent,
                    "precision": precision,
                },
            )
            found.append(
                Contender(
                    own_name(name, quantization),
                    service,
                    {"spec": None if spec is None else dict(spec)},
                    ours=True,
                    quantization=quantization,
                )
            )
    return found


def peer_contenders(
    names: Sequence[str],
    resolved: ResolvedModel,
    sources: Sources,
    common: Mapping[str, Any],
) -> list[Contender]:
    """Make contenders of other programs; what they read is exported here.

    Args:
        names: Some of `PEERS`.
        resolved: The target.
        sources: Where vLLM's drafter comes from.
        common: What every `load` request says.

    Raises:
        UnsupportedError: An environment has not been made, or a peer cannot read the model.
        InvalidRequestError: A peer needs a drafter that there is not.
    """
    gguf = resolved.files.is_file()
    for name in names:
        peer = PEERS[name]
        environment_python(peer.environment)
        if peer.needs == "gguf" and not gguf:
            raise UnsupportedError(
                f"{name} reads GGUF files, but {resolved.name} is a folder with safetensors.",
                remedy=f"Give a GGUF file of the model, or leave {name} out.",
                field="peers",
            )
        if peer.drafter and sources.peagle is None:
            raise InvalidRequestError(
                f"{name} needs a P-EAGLE drafter, but {resolved.name} has none.",
                remedy=f"Give one with --drafter, or leave {name} out.",
                field="peers",
            )
    found = []
    for name in names:
        peer = PEERS[name]
        model = resolved.files if peer.needs == "gguf" else target_folder(resolved)
        settings: dict[str, Any] = {"model": str(model), **common, **peer.settings}
        settings["drafter"] = None
        if peer.drafter:
            assert sources.peagle is not None
            settings["drafter"] = str(drafter_folder(resolved, sources.peagle))
        # Configurations that one process can serve share it.
        service = peer.environment if peer.request else peer.name
        found.append(
            Contender(
                name,
                ServiceSpec(service, peer.environment, peer.module, settings),
                peer.request,
            )
        )
    return found


def server_contender(url: str, model: str | None) -> Contender:
    """Make a contender of a server with the OpenAI protocol."""
    return Contender(
        f"server {url}", ServiceSpec(f"server {url}", SERVER, url, {"model": model}), {}
    )


def kv_cache_gib(kv_bytes_per_token: int, tokens: int, streams: int) -> int:
    """Gigabytes that the keys and values of all streams take, rounded up, twice over."""
    return 1 + 2 * kv_bytes_per_token * tokens * streams // _GIB
