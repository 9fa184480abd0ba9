"""Some public prompts, answered, and drafters that know these answers a little."""

import json
from pathlib import Path

import pytest

from peagle import LLM
from peagle.evaluate.recorded import Features, Recorded, read_features
from peagle.evaluate.workload import PUBLIC_WORKLOAD
from peagle.spec import NetworkMethod
from peagle.train.prompt_lines import PromptEntry, read_entries
from tests.evaluate.drafters import save_informed_drafter

# The first is ended by the model, the others by a limit.
CHOSEN = {"chat-03": 64, "qa-05": 16, "json-01": 24}


@pytest.fixture(scope="session")
def entries(smollm2: LLM) -> list[PromptEntry]:
    lines = [
        json.dumps({**fields, "max_tokens": CHOSEN[fields["id"]]})
        for fields in map(json.loads, PUBLIC_WORKLOAD.read_text().splitlines())
        if fields["id"] in CHOSEN
    ]
    return list(read_entries(smollm2, Path("chosen.jsonl"), "\n".join(lines).encode()))


@pytest.fixture(scope="session")
def recorded(smollm2: LLM, entries: list[PromptEntry]) -> list[Recorded]:
    from peagle.evaluate.answers import record_answers

    return record_answers(smollm2, entries, usual_max_tokens=512)


@pytest.fixture(scope="session")
def features(smollm2: LLM, recorded: list[Recorded]) -> list[Features]:
    return [read_features(smollm2.target, one) for one in recorded]


@pytest.fixture(scope="session", params=["peagle", "eagle3"])
def drafting(
    request: pytest.FixtureRequest,
    smollm2: LLM,
    recorded: list[Recorded],
    features: list[Features],
    tmp_path_factory: pytest.TempPathFactory,
) -> LLM:
    """The model with a drafter of each method."""
    method: NetworkMethod = request.param
    path = tmp_path_factory.mktemp("drafters") / f"{method}.safetensors"
    save_informed_drafter(path, smollm2, recorded, features, method)
    return LLM("smollm2-135m-instruct", path, dtype="bfloat16")
