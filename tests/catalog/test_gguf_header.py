import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog.gguf_header import check_gguf, read_gguf_header
from peagle.errors import CheckpointError, ModelNotFoundError, PeagleError, UnsupportedError


def test_whole_file_passes(tiny_gguf: Path) -> None:
    check_gguf(tiny_gguf)


def test_any_other_alignment_is_honoured(tmp_path: Path) -> None:
    file = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_custom_alignment(4096)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    values = gguf.quantize(np.zeros((1, 32), np.float32), q8_0)
    writer.add_tensor("a", values, raw_dtype=q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = file.read_bytes()[: 4096 + 34]
    file.write_bytes(content)
    check_gguf(file)
    file.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="describes 4130 bytes, the file has 4129"):
        check_gguf(file)


def test_tensors_lie_where_the_gguf_package_finds_them(tiny_gguf: Path) -> None:
    found = [
        (tensor.name, tensor.kind, list(reversed(tensor.shape)), tensor.start, tensor.size)
        for tensor in read_gguf_header(tiny_gguf).tensors
    ]
    assert found == [
        (t.name, t.tensor_type, t.shape.tolist(), t.data_offset, t.n_bytes)
        for t in gguf.GGUFReader(tiny_gguf).tensors
    ]
    end = max(start + size for *_, start, size in found)
    content = tiny_gguf.read_bytes()
    tiny_gguf.write_bytes(content[:end])
    check_gguf(tiny_gguf)
    tiny_gguf.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError, match=f"describes {end} bytes, the file has {end - 1}"):
        check_gguf(tiny_gguf)


def test_metadata_equals_what_the_gguf_package_reads(tmp_path: Path) -> None:
    file = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for width in (8, 16, 32, 64):
        getattr(writer, f"add_uint{width}")(f"whole.u{width}", 2**width - 1)
        getattr(writer, f"add_int{width}")(f"whole.i{width}", -(2 ** (width - 1)))
    writer.add_float32("real.f32", 0.1)
    writer.add_float64("real.f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "ñ👍\x00")
    writer.add_array("list.text", ["", "Ġa", "日本"])
    writer.add_array("list.whole", [1, -2, 3])
    writer.add_array("list.real", [0.5, -1.5])
    writer.add_array("list.truth", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    told = {
        name: field.contents()
        for name, field in gguf.GGUFReader(file).fields.items()
        if not name.startswith("GGUF.")
    }
    assert len(told) == 17
    assert read_gguf_header(file).metadata == told


@given(kept=st.floats(min_value=0, max_value=0.999))
def test_every_cut_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, make_gguf: Callable[..., Path], kept: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    content = make_gguf(folder / "whole.gguf", rows=2).read_bytes()
    cut = folder / "cut.gguf"
    # Nothing follows the last tensor: its 320 bytes of Q4_1 are a multiple of the alignment.
    cut.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        check_gguf(cut)


@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_damaged_header_raises_only_what_a_user_can_act_on(
    tmp_path_factory: pytest.TempPathFactory,
    make_gguf: Callable[..., Path],
    place: int,
    value: int,
) -> None:
    file = make_gguf(tmp_path_factory.mktemp("damaged") / "a.gguf", rows=1)
    content = bytearray(file.read_bytes())
    content[place] = value
    file.write_bytes(content)
    with suppress(PeagleError):
        check_gguf(file)


def test_other_file_is_named_by_its_first_bytes(tmp_path: Path) -> None:
    file = tmp_path / "pointer.gguf"
    file.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(CheckpointError, match="is not a GGUF file: it begins with b'vers'"):
        check_gguf(file)


def test_file_that_is_not_there_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"There is no file .*missing\.gguf"):
        read_gguf_header(tmp_path / "missing.gguf")
    with pytest.raises(CheckpointError, match=r"cannot be read \(Is a directory\)"):
        read_gguf_header(tmp_path)


@pytest.mark.parametrize(
    ("written", "instead", "says"),
    [
        (b"def", b"\xff\xfe\xfd", "'utf-8' codec can't decode"),
        (b"general.name\x08", b"general.name\x63", "99 is not a valid GGUFValueType"),
        (b"\x08\0\0\0\x04\0\0\0\0\0\0\0tiny", b"\x08\0\0\0\x04\0\0\0\0\0\0\xfftiny", "too early"),
        (b"output.weight\x02", b"output.weight\x05", "'output.weight' has 5 dimensions"),
        (b"output.weight\x02\0\0\0\0\x01", b"output.weight\x02\0\0\0\x01\x01", "257 columns"),
    ],
)
def test_damage_is_said_with_what_was_found(
    tiny_gguf: Path, written: bytes, instead: bytes, says: str
) -> None:
    content = tiny_gguf.read_bytes()
    assert content.count(written) == 1
    tiny_gguf.write_bytes(content.replace(written, instead))
    with pytest.raises(CheckpointError, match=rf"tiny\.gguf has a damaged .*{says}"):
        read_gguf_header(tiny_gguf)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for name in ("left", "rite"):
        writer.add_tensor(name, np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.write_bytes(file.read_bytes().replace(b"rite", b"left"))
    with pytest.raises(CheckpointError, match="two tensors have one name"):
        read_gguf_header(file)


def test_empty_file_is_no_gguf(tmp_path: Path) -> None:
    file = tmp_path / "empty.gguf"
    file.touch()
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        check_gguf(file)


@pytest.mark.parametrize("version", [1, 4, struct.unpack(">I", struct.pack("<I", 3))[0]])
def test_other_version_is_unsupported(tiny_gguf: Path, version: int) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    content[4:8] = struct.pack("<I", version)
    tiny_gguf.write_bytes(content)
    with pytest.raises(UnsupportedError, match=f"version {version}"):
        check_gguf(tiny_gguf)


def test_one_of_several_parts_is_unsupported(
    tmp_path: Path, make_gguf: Callable[..., Path]
) -> None:
    part = make_gguf(tmp_path / "part-00001-of-00003.gguf", parts=3)
    with pytest.raises(UnsupportedError, match="one of 3 parts") as caught:
        check_gguf(part)
    assert "--merge" in caught.value.remedy
    check_gguf(make_gguf(tmp_path / "whole.gguf", parts=1))


def test_unknown_tensor_type_is_unsupported(tiny_gguf: Path) -> None:
    content = tiny_gguf.read_bytes()
    at = content.index(b"output.weight") + len(b"output.weight") + 4 + 2 * 8
    assert content[at : at + 4] == struct.pack("<I", gguf.GGMLQuantizationType.Q4_1)
    tiny_gguf.write_bytes(content[:at] + struct.pack("<I", 999) + content[at + 4 :])
    with pytest.raises(UnsupportedError, match=r"'output\.weight' of the unknown type 999"):
        check_gguf(tiny_gguf)


def test_file_without_tensors_holds_no_weights(tmp_path: Path) -> None:
    file = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="holds no weights"):
        check_gguf(file)


@pytest.mark.parametrize(
    ("architecture", "kind", "says"),
    [
        ("clip", None, "the vision part of a model"),
        ("llama", "mmproj", "the vision part of a model"),
        ("llama", "adapter", "an adapter"),
    ],
)
def test_what_is_no_language_model_is_named(
    tmp_path: Path, architecture: str, kind: str | None, says: str
) -> None:
    file = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    if kind is not None:
        writer.add_type(kind)
    writer.add_tensor("v.patch_embd.weight", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=rf"other\.gguf is {says}"):
        check_gguf(file)
