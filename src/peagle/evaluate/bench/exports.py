"""The target and its drafter in the forms that peers read, made once and kept in the cache."""

import hashlib
from pathlib import Path

import torch

from peagle.catalog.cache import cache_folder, exclusive
from peagle.catalog.resolution import ResolvedModel
from peagle.draft.formats.writing import export_drafter
from peagle.draft.loading import load_weights
from peagle.model.loading import open_tokenizer
from peagle.model.prepared import open_checkpoint
from peagle.model.target_export import export_target


def target_folder(resolved: ResolvedModel) -> Path:
    """Give the target as a Hugging Face folder.

    Raises:
        PeagleError: The model cannot be read, or the cache folder not written.
    """
    if resolved.files.is_dir():
        return resolved.files
    folder = cache_folder() / "exports" / f"{resolved.name}-{_key(resolved.files)}"
    with exclusive(f"export-{folder.name}", f"the export of {resolved.name}"):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            template = resolved.entry.chat_template if resolved.entry else None
            export_target(resolved.files, folder, chat_template=template)
    return folder


def drafter_folder(resolved: ResolvedModel, drafter: Path) -> Path:
    """Give a drafter as a folder that vLLM reads.

    Raises:
        PeagleError: It is not for this target, or cannot be expressed in that form.
    """
    key = _key(drafter if drafter.is_file() else drafter / "config.json")
    folder = cache_folder() / "exports" / f"{resolved.name}-{drafter.stem}-{key}"
    with exclusive(f"export-{folder.name}", f"the export of {drafter.name}"):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            checkpoint = open_checkpoint(resolved.files, torch.bfloat16)
            embedding = checkpoint.tensors()["model.embed_tokens.weight"]
            fingerprint = open_tokenizer(resolved.files).fingerprint()
            config, tensors = load_weights(drafter, checkpoint.config, embedding, fingerprint)
            export_drafter(
                config, tensors, folder, "vllm", target=checkpoint.config, embedding=embedding
            )
    return folder


def _key(file: Path) -> str:
    state = file.stat()
    what = repr((str(file.resolve()), state.st_size, state.st_mtime_ns))
    return hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
