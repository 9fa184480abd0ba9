"""The Python front door: `LLM`, which answers prompts, alone or many together."""

from peagle.llm.generation import Generation
from peagle.llm.llm import LLM
from peagle.llm.prompt import Prompt
from peagle.llm.result import Choice, Piece, Result, Timing

__all__ = ["LLM", "Choice", "Generation", "Piece", "Prompt", "Result", "Timing"]
