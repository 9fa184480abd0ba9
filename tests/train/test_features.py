"""Bulk reading gives what serving gives: features, teacher and normalizer."""

import errno
import io
from pathlib import Path

import pytest
import torch

from peagle.errors import CheckpointError
from peagle.model.rows import SequenceRows
from peagle.train.feature_cache import FeatureCache
from peagle.train.features import FeatureReader
from tests.model.random_models import FAMILIES
from tests.train.tiny_training import TAPS, documents_of, tapped_target


@pytest.mark.parametrize("family", ["grouped", "windowed"])
def test_features_equal_those_of_serving(family: str) -> None:
    target = tapped_target(FAMILIES[family])
    documents = documents_of(3, answer=90)
    read = FeatureReader(target).read(documents)
    cache = target.new_cache(1 << 24)
    for document, found in zip(documents, read, strict=True):
        sequence = cache.open(len(document))
        output = target.forward(
            cache, [SequenceRows(sequence, document.tokens[:-1].tolist())], features=True
        )
        assert torch.allclose(found.taps.float(), output.features[0], rtol=0.01, atol=0.01)
        logits = output.logits[0][document.prompt_tokens :]
        assert torch.allclose(found.log_normalizer, logits.logsumexp(-1), atol=1e-3)
        again = target.weights.head(found.teacher.float())
        assert torch.allclose(again, logits, rtol=0.02, atol=0.05)
        cache.close(sequence)
    assert target.weights.head.most_rows == target.rows_per_block


def test_a_cache_gives_what_was_read_and_reads_it_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("peagle.train.feature_cache._AT_ONCE", 60)
    target = tapped_target()
    documents = documents_of(20)
    reader = FeatureReader(target)

    def opened(key: str = "one") -> FeatureCache:
        return FeatureCache(tmp_path, documents, reader, key=key, config=target.config, taps=TAPS)

    cache = opened()
    cache.read([3, 17, 4])
    assert cache.known == 3
    assert cache.read_tokens == sum(len(documents[index]) for index in (3, 17, 4))
    cache.read([4, 5])
    assert cache.read_tokens == sum(len(documents[index]) for index in (3, 17, 4, 5))
    again = opened()
    for index, found in zip((17, 5), again.read([17, 5]), strict=True):
        expected = reader.read([documents[index]])[0]
        assert torch.equal(found.taps, expected.taps)
        assert torch.equal(found.teacher, expected.teacher)
        assert torch.allclose(found.log_normalizer, expected.log_normalizer, atol=1e-5)
    assert again.read_tokens == 0
    assert opened(key="another target").known == 0


def test_what_was_interrupted_is_read_again(tmp_path) -> None:
    target = tapped_target()
    documents = documents_of(4)

    class Interrupted(FeatureReader):
        def read(self, documents):
            raise KeyboardInterrupt

    def opened(kind: type[FeatureReader]) -> FeatureCache:
        return FeatureCache(
            tmp_path, documents, kind(target), key="one", config=target.config, taps=TAPS
        )

    with pytest.raises(KeyboardInterrupt):
        opened(Interrupted).read([0, 1])
    cache = opened(FeatureReader)
    assert cache.known == 0
    assert len(cache.read([0, 1])) == 2
    assert cache.known == 2


def opened(folder, documents, key: str = "one") -> FeatureCache:
    target = tapped_target()
    return FeatureCache(
        folder, documents, FeatureReader(target), key=key, config=target.config, taps=TAPS
    )


def test_a_full_disk_is_said_before_anything_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("U", (), {"free": 1000})())
    with pytest.raises(CheckpointError, match=r"features needs .* where 1\.0 kB is free") as caught:
        opened(tmp_path, documents_of(9))
    assert caught.value.field == "output"
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_while_reading_keeps_what_was_read(tmp_path, monkeypatch) -> None:
    documents = documents_of(6)
    cache = opened(tmp_path, documents)
    kept = cache.read([0, 1])

    class Full(io.FileIO):
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda path, mode, **_: Full(path, mode))
        with pytest.raises(CheckpointError, match=r"cannot be cached .*No space left"):
            cache.read([2, 3])
    again = opened(tmp_path, documents)
    assert again.known == 2
    for before, after in zip(kept, again.read([0, 1]), strict=True):
        assert torch.equal(before.taps, after.taps)
        assert torch.equal(before.teacher, after.teacher)
    assert again.read_tokens == 0


def test_files_of_another_size_are_read_anew(tmp_path) -> None:
    documents = documents_of(3)
    expected = opened(tmp_path, documents).read([1])[0]
    (tmp_path / "taps.bin").unlink()
    again = opened(tmp_path, documents)
    assert again.known == 0
    assert torch.equal(again.read([1])[0].taps, expected.taps)


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot be cached in .*file/features \(Not a dir"):
        opened(tmp_path / "file" / "features", documents_of(2))
