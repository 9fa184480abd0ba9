"""Make a corpus table from answers that the target wrote.

    python scripts/build_corpus.py [INPUT.jsonl.gz] [OUTPUT.safetensors] [--limit N] [--model NAME]

INPUT has one JSON object a line, with `prompt_token_ids` and `response_token_ids`. Documents that
the split rule of `peagle.train.split` holds out are left out.
"""

import argparse
import gzip
import hashlib
import json
import time
from pathlib import Path

from peagle.catalog import resolve
from peagle.draft.corpus import Corpus
from peagle.draft.corpus_build import build_corpus, until_it_repeats
from peagle.model.tokenizer import Tokenizer
from peagle.train.conversations import Conversation
from peagle.train.split import RULE, held_out

REPOSITORY = Path(__file__).parents[1]
SELF_CHAT = REPOSITORY / "data" / "smollm2-self-chat.jsonl.gz"
CORPUS = REPOSITORY / "src" / "peagle" / "catalog" / "corpora" / "smollm2-135m-instruct.safetensors"

# An answer is stored with the last tokens of its prompt, so that beginnings are known as such.
PROMPT_TOKENS = 2


def tokenizer_fingerprint(model: str) -> str:
    files = resolve(model).files
    read = Tokenizer.from_gguf if files.is_file() else Tokenizer.from_folder
    return read(files).fingerprint()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, nargs="?", default=SELF_CHAT)
    parser.add_argument("output", type=Path, nargs="?", default=CORPUS)
    parser.add_argument("--limit", type=int, help="most conversations to read")
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="name or path: whose token ids these are"
    )
    told = parser.parse_args()

    source = told.input.read_bytes()
    lines = gzip.decompress(source).splitlines()[: told.limit]
    conversations = [
        Conversation(each["prompt_token_ids"], each["response_token_ids"])
        for each in map(json.loads, lines)
    ]
    out = held_out(conversations)
    kept = [each for each, held in zip(conversations, out, strict=True) if not held]
    corpus = build_corpus(
        [[*each.prompt[-PROMPT_TOKENS:], *until_it_repeats(each.response)] for each in kept],
        vocab_size=1 + max(max([*each.prompt, *each.response]) for each in conversations),
        source_sha256=hashlib.sha256(source).hexdigest(),
        split_rule=RULE,
        tokenizer_fingerprint=tokenizer_fingerprint(told.model),
    )
    told.output.parent.mkdir(parents=True, exist_ok=True)
    corpus.save(told.output)

    begin = time.perf_counter()
    Corpus.load(told.output)
    print(f"{len(kept)} of {len(conversations)} conversations, {sum(out)} held out")
    print(f"{corpus.description.tokens} tokens, {told.output.stat().st_size / 1e6:.2f} MB")
    print(f"loads in {(time.perf_counter() - begin) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
