"""The list of families is the registry, and says of each what loading it would do."""

import pytest
import torch

from peagle.model.families import FAMILIES
from peagle.model.gguf_names import ARCHITECTURES
from peagle.model.native_target import obstacle
from peagle.model.supported import supported_families
from tests.model.random_models import FAMILIES as LLAMAS
from tests.model.random_models import OTHER_FAMILIES


def test_every_family_is_listed_with_its_sources() -> None:
    found = supported_families()
    assert [family.title for family in found] == [family.title for family in FAMILIES]
    qwen = found[4]
    assert qwen.architectures == ("Qwen3MoeForCausalLM",)
    assert qwen.sources == ("safetensors", "GGUF qwen3moe")
    assert (qwen.native, qwen.not_native) == (False, "mixture of experts")
    assert qwen.quantisations == ("int8", "int4")
    assert found[-1].architectures == ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")


def test_every_architecture_of_gguf_files_is_a_familys() -> None:
    assert {family.gguf for family in FAMILIES} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["grouped", "windowed", *OTHER_FAMILIES])
def test_the_path_is_that_of_a_random_model_of_the_family(name: str) -> None:
    config = {**LLAMAS, **OTHER_FAMILIES}[name]
    found = {
        family.name: described
        for family, described in zip(FAMILIES, supported_families(), strict=True)
    }
    runs = obstacle(config, torch.bfloat16, "int8") is None
    # A window in some layers is a thing of the model, not of its family.
    assert runs == found[config.family].native or name == "qwen2-windowed"
