"""From what the user asks for to contenders that can be started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peagle.catalog.resolution import ResolvedModel
from peagle.draft.loading import read_drafter_config
from peagle.errors import InvalidRequestError, UnsupportedError
from peagle.evaluate.bench.contenders import (
    OFF,
    OWN,
    PEERS,
    Contender,
    ServiceSpec,
    own_name,
)
from peagle.evaluate.bench.environments import environment_python
from peagle.evaluate.bench.exports import drafter_folder, target_folder
from peagle.evaluate.bench.services import SERVER
from peagle.spec import METHOD_TITLES, NetworkMethod

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Sources:
    """What there is to draft from.

    Attributes:
        drafters: A drafter for each method that has one.
        corpus: A corpus; None if there is none.
    """

    drafters: Mapping[NetworkMethod, Path]
    corpus: Path | None

    def lacking(self, configuration: str) -> str | None:
        """Say what a configuration of ours needs and is not there, as its option is called."""
        spec = OWN[configuration] or {}
        method = spec.get("method")
        if method in METHOD_TITLES and method not in self.drafters:
            return "drafter"
        # A network with text sources still has the request's own text.
        if method == "lookup" and spec["corpus"] and self.corpus is None:
            return "corpus"
        return None


def read_sources(resolved: ResolvedModel, given: Sequence[Path], corpus: Path | None) -> Sources:
    """Give what was told to draft from, and the model's own beside it.

    Args:
        resolved: The target.
        given: Drafters that stand in for the model's own of the same method.
        corpus: A corpus instead of the model's own.

    Raises:
        CheckpointError: A drafter is missing, damaged or something else.
        UnsupportedError: A drafter has a part that this engine does not run.
        InvalidRequestError: Two of the given drafters are of one method.
    """
    told: dict[NetworkMethod, Path] = {}
    for drafter in given:
        method = read_drafter_config(drafter).method
        if method in told:
            raise InvalidRequestError(
                f"{told[method]} and {drafter} are both {METHOD_TITLES[method]} drafters.",
                remedy="Give --drafter once for each method.",
                field="drafter",
            )
        told[method] = drafter
    return Sources({**resolved.drafters, **told}, corpus or resolved.corpus)


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
    """
    for name in names:
        lacking = sources.lacking(name)
        if lacking is not None:
            raise InvalidRequestError(
                f"--configurations holds {name}, but there is no {lacking} for it.",
                remedy=f"Give one with --{lacking}, or leave {name} out.",
                field="configurations",
            )
    wanted = [OFF, *(name for name in names if name != OFF)] if names else []
    found = []
    for quantization in quantizations:
        precision = (
            {"dtype": "bfloat16"} if quantization == "none" else {"quantization": quantization}
        )
        for name in wanted:
            spec = OWN[name]
            # The text sources and plain decoding share the process of the P-EAGLE drafter.
            network: NetworkMethod = "eagle3" if spec and spec["method"] == "eagle3" else "peagle"
            drafter = sources.drafters.get(network)
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
        if peer.drafter and "peagle" not in sources.drafters:
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
            settings["drafter"] = str(drafter_folder(resolved, sources.drafters["peagle"]))
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
