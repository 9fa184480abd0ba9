"""What the tests of the text sources share: the shipped files and recorded answers."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog.entry import DATA_FOLDER
from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior

SHIPPED_CORPUS = DATA_FOLDER / "corpora" / "smollm2-135m-instruct.safetensors"


@pytest.fixture(scope="session")
def shipped_corpus() -> Corpus:
    return Corpus.load(SHIPPED_CORPUS)


@pytest.fixture(scope="session")
def shipped_prior() -> MixturePrior:
    return MixturePrior.load()


@pytest.fixture(scope="session")
def public_answers() -> list[dict[str, Any]]:
    """Greedy answers of SmolLM2-135M-Instruct to the public workload, as token ids."""
    packed = (Path(__file__).parent / "public_answers.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]
