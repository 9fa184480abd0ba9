"""From conversations of a target to the corpus that its requests are drafted from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peagle.draft.corpus import Corpus
from peagle.draft.corpus_build import build_corpus, until_it_repeats
from peagle.errors import CheckpointError
from peagle.train.conversations import ConversationFile
from peagle.train.split import RULE, held_out

_PROMPT_TOKENS: Final = 2
"""Last tokens of a prompt, stored with its answer so that beginnings are known as such."""


@dataclass(frozen=True, slots=True)
class MadeCorpus:
    """A corpus, and what became of the conversations.

    Attributes:
        corpus: The table.
        kept: Conversations whose answers are in it.
        held_out: Conversations left out, for measuring on text that it does not contain.
    """

    corpus: Corpus
    kept: int
    held_out: int


def corpus_of(files: Sequence[ConversationFile], *, tokenizer_fingerprint: str) -> MadeCorpus:
    """Make a corpus of the answers in some files, without the documents that the split holds out.

    The split looks at all files together, so that a document which several of them share lies on
    one side.

    Args:
        files: Conversations of one target.
        tokenizer_fingerprint: That target's.

    Raises:
        CheckpointError: All conversations were held out.
    """
    conversations = [each for file in files for each in file.conversations]
    out = held_out(conversations)
    kept = [each for each, held in zip(conversations, out, strict=True) if not held]
    if not kept:
        raise CheckpointError(
            f"All {len(conversations)} conversations belong to documents that are held out, so "
            "nothing is left for a corpus.",
            remedy="Give more conversations; 3% of the documents are held out.",
            field="data",
        )
    corpus = build_corpus(
        [[*each.prompt[-_PROMPT_TOKENS:], *until_it_repeats(each.response)] for each in kept],
        vocab_size=1 + max(max(*each.prompt, *each.response) for each in conversations),
        source_sha256=_digest(files),
        split_rule=RULE,
        tokenizer_fingerprint=tokenizer_fingerprint,
    )
    return MadeCorpus(corpus, kept=len(kept), held_out=sum(out))


def _digest(files: Sequence[ConversationFile]) -> str:
    """The file's own digest; of several files, that of their digests in order."""
    if len(files) == 1:
        return files[0].sha256
    return hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
