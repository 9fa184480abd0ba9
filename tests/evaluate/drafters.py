"""Drafters for the real model that are right now and then, made in a second without training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from peagle import LLM
from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import offsets
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import save_drafter
from peagle.draft.untrained import random_tensors
from peagle.evaluate.recorded import Features, Recorded
from peagle.spec import NetworkMethod
from tests.draft.straight_network import StraightNetwork, rms


def save_informed_drafter(
    path: Path,
    llm: LLM,
    known: Sequence[Recorded],
    features: Sequence[Features],
    method: NetworkMethod,
    **changes: object,
) -> NetworkConfig:
    """Write a random network whose output head is fitted to the successors in known text.

    At depth 1 it is mostly right about that text, and less so in bfloat16 and at other depths.
    """
    target = llm.target
    tokens = [[*one.prompt, *one.answer] for one in known]
    ids = torch.tensor(sorted({token for text in tokens for token in text}))
    shape = {
        "decoder": replace(target.config, num_layers=1, tied_embeddings=False),
        "draft_vocab_size": len(ids),
        "target_hidden_size": target.config.hidden_size,
        "taps": target.taps,
        "tokenizer_fingerprint": llm.tokenizer.fingerprint(),
        "target_name": llm.name,
        "train_depth": 8,
        **changes,
    }
    config: NetworkConfig = (
        PEagleConfig(**shape, mask_token_id=0) if method == "peagle" else Eagle3Config(**shape)
    )
    tensors = random_tensors(config, seed=1)
    tensors["d2t"] = offsets(ids)
    straight = StraightNetwork(config, tensors, target.embedding)
    inputs, wanted = [], []
    for text, own in zip(tokens, features, strict=True):
        fused = straight.fuse(torch.cat(list(own.values()), -1)[:-1].double())
        stream = straight.stream(straight.embed(text[1:-1]), fused)
        inputs.append(rms(stream, straight.weights["norm.weight"], config.decoder.rms_norm_eps))
        wanted.append(torch.searchsorted(ids, torch.tensor(text[2:])))
    rows, right = torch.cat(inputs), torch.cat(wanted)
    ridge = rows.T @ rows + 10.0 * torch.eye(rows.shape[1])
    one_hot = torch.nn.functional.one_hot(right, len(ids)).double()
    tensors["lm_head.weight"] = 8 * torch.linalg.solve(ridge, rows.T @ one_hot).T.float()
    save_drafter(path, config, tensors)
    return config
