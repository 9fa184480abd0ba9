"""Who is measured: our own engine in several configurations, and other programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from peagle.errors import InvalidRequestError

OFF: Final = "off"

_NETWORK_ALONE: Final = {"lookup": False, "corpus": False}
OWN: Final[Mapping[str, Mapping[str, Any] | None]] = {
    OFF: None,
    "lookup": {"method": "lookup", "lookup": True, "corpus": False},
    "lookup+corpus": {"method": "lookup", "lookup": True, "corpus": True},
    "eagle3": {"method": "eagle3", **_NETWORK_ALONE},
    "eagle3+text": {"method": "eagle3", "lookup": True, "corpus": True},
    "peagle-chain": {
        "method": "peagle",
        **_NETWORK_ALONE,
        "num_parallel_trees": 1,
        "prediction_depth": 7,
        "max_tree_nodes": 7,
    },
    "peagle-tree": {"method": "peagle", **_NETWORK_ALONE},
    "all": {"method": "peagle", "lookup": True, "corpus": True},
}
"""Our configurations and the `parallel_drafting_spec` of each; None turns speculation off."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program that an adapter runs in an environment of its own.

    Attributes:
        name: What users and reports call it.
        environment: Which environment it runs in (`environments.PACKAGES`).
        module: The adapter in `peers`.
        needs: The form of the target that it reads: `gguf`, or `folder` for a Hugging Face one.
        settings: What its `load` request says beside the common settings.
        request: What its `answer` requests say.
        drafter: Whether it drafts with our exported P-EAGLE drafter.
    """

    name: str
    environment: str
    module: str
    needs: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    request: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drafter: bool = False


PEERS: Final[Mapping[str, Peer]] = {
    one.name: one
    for one in (
        Peer("transformers", "transformers", "run_transformers", "folder",
             request={"lookup": False}),
        Peer("transformers-lookup", "transformers", "run_transformers", "folder",
             request={"lookup": True}),
        Peer("llama-cpp", "llama-cpp", "run_llama_cpp", "gguf", {"lookup": False}),
        Peer("llama-cpp-lookup", "llama-cpp", "run_llama_cpp", "gguf", {"lookup": True}),
        Peer("openvino", "openvino", "run_openvino", "gguf"),
        Peer("vllm", "vllm", "run_vllm", "folder", {"eager": False, "draft_tokens": 0}),
        Peer("vllm-peagle", "vllm", "run_vllm", "folder", {"eager": False, "draft_tokens": 7},
             drafter=True),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process, or a server, that answers for one or more contenders.

    Attributes:
        name: Differs between services.
        environment: Its Python environment; None for ours, `url` for a server.
        module: The adapter in `peers`; for a server its URL.
        settings: What its `load` request says. It takes no part in comparisons.
    """

    name: str
    environment: str | None
    module: str
    settings: Mapping[str, Any] = dataclasses.field(compare=False)


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the report.

    Attributes:
        name: What reports call it.
        service: Who answers.
        request: What its `answer` requests say. It takes no part in comparisons.
        ours: Whether it is our own engine.
        quantization: Of our own engine: `none`, `int8` or `int4`.
    """

    name: str
    service: ServiceSpec
    request: Mapping[str, Any] = dataclasses.field(compare=False)
    ours: bool = False
    quantization: str | None = None


def own_name(configuration: str, quantization: str) -> str:
    """What reports call a configuration of ours."""
    return f"{configuration}/{'bf16' if quantization == 'none' else quantization}"


def choose_names(
    told: str | None, known: Sequence[str], usual: Sequence[str], field: str, what: str
) -> list[str]:
    """Read a list such as `off,all`.

    Args:
        told: What the user wrote; None for the usual ones, an empty string or `none` for nothing.
        known: Names there are.
        usual: Names if nothing was told.
        field: The option.
        what: What a name stands for.

    Raises:
        InvalidRequestError: A name is unknown or given twice.
    """
    if told is None:
        return list(usual)
    # `none` is a quantisation, too.
    if not told.strip() or (told.strip() == "none" and "none" not in known):
        return []
    names: list[str] = []
    for name in (part.strip() for part in told.split(",")):
        if name not in known or name in names:
            raise InvalidRequestError(
                f"--{field} holds {name!r}{' twice' if name in names else ''}"
                f"{'' if name in known else f', which is no {what}'}.",
                remedy=f"Choose among {', '.join(known)}.",
                field=field,
            )
        names.append(name)
    return names


def choose_concurrencies(told: str, prompts: int) -> list[int]:
    """Read a list such as `1,8`.

    Args:
        told: What the user wrote.
        prompts: How many prompts there are.

    Raises:
        InvalidRequestError: One is no number of at least 1, given twice, or above `prompts`.
    """
    chosen: list[int] = []
    for part in (part.strip() for part in told.split(",")):
        number = int(part) if part.isascii() and part.isdigit() else 0
        if number < 1 or number in chosen:
            raise InvalidRequestError(
                f"--concurrency holds {part!r}{' twice' if number in chosen else ''}.",
                remedy="Give different whole numbers of at least 1, such as 1,8,32.",
                field="concurrency",
            )
        if number > prompts:
            raise InvalidRequestError(
                f"--concurrency holds {number}, but there are only {prompts} prompts.",
                remedy=f"Give numbers up to {prompts}, or more prompts.",
                field="concurrency",
            )
        chosen.append(number)
    return chosen
