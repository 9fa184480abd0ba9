"""Bulk reading gives what serving gives: features, teacher and normalizer."""

import numpy as np
import pytest
import torch

from peagle.errors import CheckpointError, DownloadError
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


def test_a_cache_gives_what_was_read_and_goes_on_where_it_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("peagle.train.feature_cache._TOKENS_AT_ONCE", 60)
    target = tapped_target()
    documents = documents_of(150)
    reader = FeatureReader(target)

    def opened(key: str = "one") -> FeatureCache:
        return FeatureCache(tmp_path, documents, key=key, config=target.config, taps=TAPS)

    class StoppedError(Exception):
        pass

    def stop(_tokens: int, passes=[0]) -> None:  # noqa: B006
        passes[0] += 1
        if passes[0] == 40:
            raise StoppedError

    with pytest.raises(StoppedError):
        opened().fill(reader, stop)
    cache = opened()
    assert 0 < cache.done <= 80
    read: list[int] = []
    cache.fill(reader, read.append)
    assert sum(read) < sum(len(document) for document in documents)
    for index in (0, 63, 64, 79, 80, 149):
        expected, found = reader.read([documents[index]])[0], opened().read([index])[0]
        assert torch.equal(found.taps, expected.taps)
        assert torch.equal(found.teacher, expected.teacher)
        assert torch.allclose(found.log_normalizer, expected.log_normalizer, atol=1e-5)
    assert opened(key="another target").done == 0


def test_a_full_disk_is_said_before_anything_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("U", (), {"free": 1000})())
    target = tapped_target()
    with pytest.raises((DownloadError, CheckpointError), match="features"):
        FeatureCache(tmp_path, documents_of(9), key="one", config=target.config, taps=TAPS)
    assert np.all([path.stat().st_size == 0 for path in tmp_path.iterdir()])
