"""Hugging Face folders of small random models, with a tokenizer, as `LLM` opens them."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from peagle.model.config import DecoderConfig
from peagle.model.hugging_face_folder import write_json
from tests.model.random_models import reference_model


def write_tiny_folder(folder: Path, config: DecoderConfig, *, seed: int = 0) -> Path:
    """Write a random model as transformers saves it, and a byte-level tokenizer.

    Args:
        folder: Where.
        config: Its shape; its vocabulary has more than 256 tokens.
        seed: Which weights.

    Returns:
        The folder.
    """
    reference_model(config, seed).save_pretrained(folder)  # type: ignore[operator]
    tokenizer = byte_tokenizer(config.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<0>"})
    return folder


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """Make a tokenizer with a token for every byte and special ones for the rest."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    more = range(vocab_size - len(letters))
    core.add_special_tokens([AddedToken(f"<{i}>", special=True) for i in more])
    return core
