"""Write a model that came as a GGUF file as a Hugging Face folder, for other programs to load."""

import shutil
from pathlib import Path

import torch

from peagle.model.folder_checkpoint import read_json
from peagle.model.hugging_face_folder import new_folder, write_json
from peagle.model.prepared import prepared_folder
from peagle.model.tokenizer import Tokenizer


def export_target(gguf_file: Path, folder: Path, *, chat_template: str | None = None) -> None:
    """Write the weights in bfloat16, the configuration, the tokenizer and when to stop.

    Args:
        gguf_file: The model.
        folder: Where; nothing may be there yet but an empty folder.
        chat_template: Jinja source that replaces the template inside the file.

    Raises:
        CheckpointError: The file is damaged, or the folder cannot be written.
        UnsupportedError: The file is of a kind that is not read.
        DownloadError: The cache folder, where dequantised weights are kept, cannot be written.
    """
    tokenizer = Tokenizer.from_gguf(gguf_file)
    prepared = prepared_folder(gguf_file, torch.bfloat16)
    roles = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    named = {role: token for role, token in roles.items() if token is not None}
    with new_folder(folder) as unfinished:
        shutil.copyfile(prepared / "model.safetensors", unfinished / "model.safetensors")
        config = read_json(prepared / "config.json")
        write_json(unfinished / "config.json", config | named | {"dtype": "bfloat16"})
        ends = {"eos_token_id": sorted(tokenizer.eos_token_ids)}
        write_json(unfinished / "generation_config.json", named | ends)
        tokenizer.save(unfinished, chat_template=chat_template or tokenizer.chat_template)
