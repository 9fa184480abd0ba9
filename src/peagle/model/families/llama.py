"""Llama, and what is built alike: SmolLM2, TinyLlama, Yi, DeepSeek-Coder."""

from peagle.model.families.family import CHECKS, Family

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    title="Llama, SmolLM2",
    gguf="llama",
    checks=tuple(CHECKS),
)
