import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog.gguf_header import check_gguf
from peagle.errors import CheckpointError, PeagleError, UnsupportedError


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


def test_end_of_the_tensors_agrees_with_the_reader_of_the_format(tiny_gguf: Path) -> None:
    end = max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(tiny_gguf).tensors)
    content = tiny_gguf.read_bytes()
    tiny_gguf.write_bytes(content[:end])
    check_gguf(tiny_gguf)
    tiny_gguf.write_bytes(content[: end - 1])
    with pytest.raises(CheckpointError, match=f"describes {end} bytes, the file has {end - 1}"):
        check_gguf(tiny_gguf)


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
    with pytest.raises(UnsupportedError, match="unknown type 999"):
        check_gguf(tiny_gguf)


def test_file_without_tensors_holds_no_weights(tmp_path: Path) -> None:
    file = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="holds no weights"):
        check_gguf(file)
