"""Fetch a model from the Hugging Face Hub into the hub's own cache, shared with other tools."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from peagle.catalog import cache
from peagle.catalog.checkpoint import ONLY_SAFE_FORMATS, check_folder, is_pickled
from peagle.catalog.progress import ProgressReport, folder_bytes, reporting, watching
from peagle.catalog.source import HubModel
from peagle.errors import CheckpointError, DownloadError, PeagleError

# Top level only: some repositories hold a second copy of the weights in a folder.
_WANTED: Final = re.compile(
    r"[^/]+\.safetensors|model\.safetensors\.index\.json|(generation_)?config\.json"
    r"|tokenizer[^/]*\.json|(special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
    r"|chat_template[^/]*"
)


def cached_folder(source: HubModel) -> Path | None:
    """Where the files lie if they were fetched before and are still whole; nothing is fetched."""
    folder = cache.read_json(_stamp(source)).get("folder")
    if not isinstance(folder, str):
        return None
    try:
        check_folder(Path(folder))
    except CheckpointError:
        return None
    return Path(folder)


def fetch_from_hub(source: HubModel, *, what: str, progress: ProgressReport | None = None) -> Path:
    """Fetch a model's configuration, tokenizer and safetensors unless they are in the cache.

    The client resumes what was interrupted. A folder counts as whole once all files are there.

    Args:
        source: The repository.
        what: What a person calls it.
        progress: Told how far it is; None shows it on standard error.

    Raises:
        DownloadError: The hub cannot be reached, refuses, or the disk is full.
        CheckpointError: The repository has no safetensors.
    """
    if (folder := cached_folder(source)) is not None:
        return folder
    with cache.exclusive(str(source), what):
        if (folder := cached_folder(source)) is not None:
            return folder
        try:
            folder, whole = _download(source, what, progress)
        except PeagleError:
            raise
        # The transport's exceptions belong to a library that differs between client versions.
        except Exception as error:
            raise _hub_error(source, error) from error
        check_folder(folder)
        if whole:
            cache.write_json(_stamp(source), {"folder": str(folder)})
    return folder


def _stamp(source: HubModel) -> Path:
    name = f"{source.repository}@{source.revision or 'main'}".replace("/", "--")
    return cache.cache_folder() / "hub" / f"{name}.json"


def _download(source: HubModel, what: str, progress: ProgressReport | None) -> tuple[Path, bool]:
    """Return the folder, and whether it is known to hold every file of the repository."""
    try:
        info = huggingface_hub.HfApi().model_info(
            source.repository, revision=source.revision, files_metadata=True
        )
    except Exception:
        if (folder := _fetched_by_others(source)) is None:
            raise
        return folder, False
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    _require_safetensors(source, list(sizes))
    wanted = {name: size for name, size in sizes.items() if _WANTED.fullmatch(name)}
    total = sum(wanted.values())
    blobs = _repository_cache(source) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    cache.require_space(blobs, total - folder_bytes(blobs), what)
    shown = f"{what} from {source}"
    with (
        reporting(progress, shown, total) as report,
        watching(blobs, report, shown, total),
        _own_bars_hidden(),
    ):
        snapshot = huggingface_hub.snapshot_download(
            source.repository, revision=info.sha, allow_patterns=sorted(wanted)
        )
    return Path(snapshot), True


def _repository_cache(source: HubModel) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{source.repository.replace('/', '--')}"


def _fetched_by_others(source: HubModel) -> Path | None:
    """Without the hub, take what another tool fetched, if it has the weights."""
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                source.repository, revision=source.revision, local_files_only=True
            )
        )
        check_folder(folder)
    except (OSError, CheckpointError):
        return None
    return folder


def _require_safetensors(source: HubModel, names: list[str]) -> None:
    if any("/" not in name and name.endswith(".safetensors") for name in names):
        return
    pickled = [name for name in names if is_pickled(name)]
    if pickled:
        raise CheckpointError(
            f"{source} holds only pickled weights ({', '.join(pickled)}).",
            remedy=ONLY_SAFE_FORMATS,
            field="model",
        )
    raise CheckpointError(
        f"{source} holds no safetensors.",
        remedy="Choose a repository with config.json and *.safetensors, or fetch a GGUF file "
        "yourself and give its path.",
        field="model",
    )


@contextmanager
def _own_bars_hidden() -> Iterator[None]:
    hidden_before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not hidden_before:
            enable_progress_bars()


def _hub_error(source: HubModel, error: Exception) -> DownloadError:
    if isinstance(error, errors.GatedRepoError):
        problem = f"{source} is gated."
        remedy = "Accept its terms on its page of the hub, then log in with `hf auth login`."
    elif isinstance(error, errors.RepositoryNotFoundError):
        problem = f"The hub has no {source}, or it is private."
        remedy = "Check the name; for a private model log in with `hf auth login`."
    elif isinstance(error, errors.RevisionNotFoundError):
        problem = f"The hub has no revision {source.revision} of hf:{source.repository}."
        remedy = "Check the branch, tag or commit after the @."
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        problem = f"The disk that holds {constants.HF_HUB_CACHE} is full."
        remedy = "Free some space, or point HF_HOME at a folder on a larger disk."
    else:
        said = str(error).partition("\n")[0].rstrip(".")
        problem = f"{source} cannot be fetched ({type(error).__name__}: {said})."
        remedy = "Check the connection, or give the path of a model on this machine."
    return DownloadError(problem, remedy=remedy, field="model")
