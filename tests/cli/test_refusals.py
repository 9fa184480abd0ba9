"""A model that cannot be run is refused in one line, with what to do, and leaves nothing behind."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle import LLM
from peagle.errors import InvalidRequestError
from tests.cli.conftest import Run
from tests.model.gguf_files import write_model
from tests.model.random_models import GROUPED, reference_model
from tests.model.tiny_folders import write_tiny_folder

INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder_with(folder: Path, **changes: Any) -> Path:
    """Write a model that runs, but for these keys of its configuration."""
    write_tiny_folder(folder, GROUPED)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def other_architecture(folder: Path) -> Path:
    return folder_with(folder, architectures=["MambaForCausalLM"])


def other_architecture_without_tokenizer(folder: Path) -> Path:
    other_architecture(folder)
    (folder / "tokenizer.json").unlink()
    return folder


def reads_images(folder: Path) -> Path:
    return folder_with(
        folder,
        architectures=["LlavaForConditionalGeneration"],
        vision_config={"model_type": "clip_vision_model"},
    )


def in_two_parts(folder: Path) -> Path:
    """Cut the weights in two and lose the second part."""
    write_tiny_folder(folder, GROUPED)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    kept = {name: whole[name] for name in names[: len(names) // 2]}
    save_file(kept, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
    parts = [f"model-0000{1 + (name not in kept)}-of-00002.safetensors" for name in names]
    (folder / INDEX).write_text(json.dumps({"weight_map": dict(zip(names, parts, strict=True))}))
    return folder


def in_two_parts_without_index(folder: Path) -> Path:
    in_two_parts(folder)
    (folder / INDEX).unlink()
    return folder


def gguf_file(folder: Path) -> Path:
    folder.mkdir()
    write_model(folder / "model.gguf", reference_model(GROUPED))
    return folder / "model.gguf"


def with_tensor_kind(file: Path, kind: int) -> Path:
    """Write another number where a GGUF file tells how a tensor is packed."""
    content, name = file.read_bytes(), b"blk.1.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    file.write_bytes(content[:at] + kind.to_bytes(4, "little") + content[at + 4 :])
    return file


def gguf_of_an_unknown_kind(folder: Path) -> Path:
    return with_tensor_kind(gguf_file(folder), 999)


def gguf_of_whole_numbers(folder: Path) -> Path:
    return with_tensor_kind(gguf_file(folder), gguf.GGMLQuantizationType.I32)


def gguf_of_another_architecture(folder: Path) -> Path:
    file = gguf_file(folder)
    content = file.read_bytes()
    # Of the same length, so that the file stays whole.
    file.write_bytes(content.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"))
    return file


def vision_part(folder: Path) -> Path:
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_type("mmproj")
    writer.add_tensor("v.patch_embd.weight", torch.ones(4, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "mmproj.gguf"


REFUSED: dict[Callable[[Path], Path], str] = {
    other_architecture: r"The architecture 'MambaForCausalLM' is not supported\. This engine runs "
    r"LlamaForCausalLM, .*Gemma3ForCausalLM",
    other_architecture_without_tokenizer: r"The architecture 'MambaForCausalLM' is not supported",
    reads_images: r"'LlavaForConditionalGeneration' reads images, which is not supported\. "
    r"Use a text model",
    in_two_parts: r"model-00002-of-00002\.safetensors is missing.* Fetch the file again",
    in_two_parts_without_index: r"model-00002-of-00002\.safetensors is missing.* Fetch the file",
    gguf_of_an_unknown_kind: r"'blk\.1\.ffn_up\.weight' of the unknown type 999\. Convert the",
    gguf_of_whole_numbers: r"'blk\.1\.ffn_up\.weight' has the quantisation I32, which is not "
    r"supported\. Use a GGUF file whose weights are of these kinds: .*Q4_0.*Q6_K.*BF16",
    gguf_of_another_architecture: r"architecture 'mamba', which is not supported\. GGUF files of",
    vision_part: r"is the vision part of a model \(mmproj\), not a language model\. Give the GGUF",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("precision", ["none", "int8"])
def test_one_line_says_what_is_wrong_and_what_to_do(
    peagle: Run, tmp_path: Path, cache: Path, make: Callable[[Path], Path], precision: str
) -> None:
    files = make(tmp_path / "model")
    ran = peagle("generate", "Hi", "--model", str(files), "--quantization", precision)
    assert ran.code == 2
    assert re.search(REFUSED[make], ran.err), ran.err
    # save_pretrained writes a progress bar before.
    assert ran.err.splitlines()[-1].startswith("Error: ")
    assert not list(cache.glob("prepared/*"))
    assert ran.out == ""


def test_a_model_without_a_chat_template_takes_text_but_no_conversation(
    peagle: Run, tmp_path: Path
) -> None:
    folder = str(write_tiny_folder(tmp_path / "model", GROUPED))
    spec = '{"method": "none"}'
    ran = peagle("chat", "--model", folder, "--spec", spec, stdin="Hi\n")
    assert ran.code == 2
    assert re.search(r"^Error: .* has no chat template, so it cannot read a conversation\. "
                     r"Give it plain text", ran.err, re.MULTILINE), ran.err  # fmt: skip
    llm = LLM(folder, parallel_drafting=False, dtype="float32", kv_cache_bytes=32 << 20)
    with pytest.raises(InvalidRequestError, match="has no chat template") as told:
        llm.generate([{"role": "user", "content": "Hi"}])
    assert told.value.field == "messages"
    assert llm.encode("Hi") == llm.encode({"prompt": "Hi"})
