"""A tiny target's documents and a tiny drafter that trains on them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from peagle.draft.peagle.config import PEagleConfig
from peagle.model.config import DecoderConfig
from peagle.model.rows import SequenceRows
from peagle.model.torch_target import TorchTarget
from peagle.train.features import Document, FeatureReader
from peagle.train.networks.peagle import PEagleTraining
from peagle.train.recipe import Recipe
from peagle.train.trainer import Trainer
from tests.draft.tiny_drafter import peagle_config
from tests.model.random_models import GROUPED, random_target

HIDDEN, DRAFT_VOCAB = GROUPED.hidden_size, GROUPED.vocab_size
TAPS = (1, 2, 3)
SAME = {"model": "tiny", "recipe": "one", "data": "same"}


def tapped_target(config: DecoderConfig = GROUPED) -> TorchTarget:
    target = random_target(config)
    target.taps = TAPS
    return target


def documents_of(
    count: int, *, seed: int = 0, prompt: int = 7, answer: int = 20, distinct: int | None = None
) -> list[Document]:
    """Let the target answer random prompts, greedily; `distinct` ones, again and again."""
    target = tapped_target()
    cache = target.new_cache(1 << 26)
    chance = np.random.default_rng(seed)
    drawn = chance.integers(8, DRAFT_VOCAB, (distinct or count, prompt)).tolist()
    prompts = [drawn[number % len(drawn)] for number in range(count)]
    sequences = [cache.open(prompt + answer) for _ in prompts]
    texts = [list(tokens) for tokens in prompts]
    entering = texts
    for _ in range(answer):
        output = target.forward(
            cache,
            [
                SequenceRows(s, list(t), logits="last")
                for s, t in zip(sequences, entering, strict=True)
            ],
        )
        output.commit([range(len(tokens)) for tokens in entering])
        entering = [[int(logits[-1].argmax())] for logits in output.logits]
        texts = [[*text, *new] for text, new in zip(texts, entering, strict=True)]
    return [Document(torch.tensor(text), prompt) for text in texts]


def config_of(**changes) -> PEagleConfig:
    decoder = replace(GROUPED, num_layers=2, tied_embeddings=False)
    return replace(
        peagle_config(decoder=decoder),
        target_hidden_size=HIDDEN,
        draft_vocab_size=DRAFT_VOCAB,
        taps=TAPS,
        **changes,
    )


def network_of(config: PEagleConfig, seed: int = 0) -> PEagleTraining:
    torch.manual_seed(seed)
    network = PEagleTraining(config, random_target(GROUPED).weights.embedding.clone())
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("norm.weight") or "layernorm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
            elif name in {"mask_embedding", "markov.gate.weight", "markov.out.weight"}:
                weight.copy_(0.2 * torch.randn_like(weight))
    return network


class Source:
    """Features of documents, read once."""

    seconds = 0.0

    def __init__(self, documents: list[Document]) -> None:
        reader = FeatureReader(tapped_target())
        self.features = reader.read(documents)

    def read(self, indices):
        return [self.features[index] for index in indices]


def trainer_of(run: Path, *, documents=None, **changes) -> Trainer:
    documents = documents_of(40) if documents is None else documents
    recipe = Recipe(
        **{
            "draft_vocab_size": DRAFT_VOCAB, "depths": 4, "markov_rank": 8, "rows_per_step": 300,
            "warmup_steps": 5, "decay_share": 0.0, **changes,
        }
    )  # fmt: skip
    run.mkdir(parents=True, exist_ok=True)
    target = random_target(GROUPED)
    return Trainer(
        network_of(config_of(markov_rank=recipe.markov_rank)),
        teacher_head=target.embedding[:DRAFT_VOCAB],
        target_ids=torch.arange(DRAFT_VOCAB),
        documents=documents,
        training=range(4, len(documents)),
        held_out=range(4),
        source=Source(documents),
        recipe=recipe,
        run=run,
        identity=SAME,
    )
