"""Build a tokenizer from the vocabulary that a GGUF file carries in its metadata.

Keys are those of the GGUF specification (`tokenizer.ggml.*`). A GGUF names its pre-tokeniser
instead of describing it, so the splitting rules of the models this engine runs are a table here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import tokenizers
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from peagle.errors import CheckpointError, UnsupportedError

_GPT2_SPLIT: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_NUMBERS
_QWEN2_SPLIT: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_NUMBERS
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
_AFTER_CASED: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN_SPLIT: Final = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}" + _AFTER_CASED
)
_GPT4O_SPLIT: Final = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
) + _AFTER_CASED


@dataclass(frozen=True, slots=True)
class _ByteLevelFamily:
    """What the name of a pre-tokeniser stands for.

    Attributes:
        splits: Patterns applied one after the other; each match becomes a piece of its own.
        whole_pieces_first: A piece that is a token itself is not built from merges.
        adds_bos: Plain prompts start with the beginning-of-sequence token.
        composes: Text is normalised to NFC first.
        end_tokens: End-of-turn tokens of the makers' generation_config.json, which a GGUF drops.
    """

    splits: tuple[str, ...]
    whole_pieces_first: bool = False
    adds_bos: bool = False
    composes: bool = False
    end_tokens: tuple[str, ...] = ()


_GPT2: Final = _ByteLevelFamily((_GPT2_SPLIT,))
_LLAMA3: Final = _ByteLevelFamily(
    (_LLAMA3_SPLIT,),
    whole_pieces_first=True,
    adds_bos=True,
    end_tokens=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|im_end|>"),
)
_CL100K: Final = _ByteLevelFamily((_LLAMA3_SPLIT,), end_tokens=("<|endoftext|>", "<|im_end|>"))
_GPT4O: Final = _ByteLevelFamily((_GPT4O_SPLIT,), end_tokens=("<|endoftext|>", "<|end|>"))

# The patterns are those of the models' tokenizer.json; "default" is what llama.cpp falls back to.
_BYTE_LEVEL_FAMILIES: Final[Mapping[str, _ByteLevelFamily]] = {
    "default": _ByteLevelFamily(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")
    ),
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _ByteLevelFamily((r"\p{N}", _GPT2_SPLIT)),
    "starcoder": _ByteLevelFamily((r"\p{N}", _GPT2_SPLIT)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _ByteLevelFamily(
        (_QWEN2_SPLIT,), composes=True, end_tokens=("<|endoftext|>", "<|im_end|>")
    ),
    "deepseek-r1-qwen": _ByteLevelFamily((_QWEN2_SPLIT,)),
    "tekken": _ByteLevelFamily((_TEKKEN_SPLIT,), whole_pieces_first=True, adds_bos=True),
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
}
# As in `_ByteLevelFamily.end_tokens`, for Gemma and Phi-3.
_SENTENCE_PIECE_END_TOKENS: Final = ("<end_of_turn>", "<|endoftext|>", "<|end|>")
# Phi-3's special tokens swallow the white space after them, but for these (its tokenizer.json).
_PHI3_KEEPS_SPACE_AFTER: Final = ("<unk>", "<s>", "<|endoftext|>")


class GGUFVocabulary:
    """The vocabulary of a GGUF file: its tokens, how text is cut into them, and their roles.

    Args:
        metadata: The file's key-value pairs (`GGUFHeader.metadata`).

    Raises:
        CheckpointError: The metadata lacks a vocabulary or contradicts itself.
        UnsupportedError: The kind of tokenizer or the pre-tokeniser is not known here.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._model = metadata.get("tokenizer.ggml.model")
        self._tokens = self._array("tokens", str)
        if not self._tokens or self._model is None:
            raise _contradiction("carries no tokenizer (tokenizer.ggml.model and .tokens)")
        types = self._array("token_type", int) or [TokenType.NORMAL] * self.size
        if len(types) != self.size:
            raise _contradiction(f"has {self.size} tokens, but {len(types)} token types")
        self._types = np.asarray(types)
        if self._model not in ("gpt2", "llama"):
            raise UnsupportedError(
                f"tokenizer.ggml.model is {self._model!r}, a kind of tokenizer not supported here.",
                remedy="Supported are gpt2 (byte-level BPE) and llama (SentencePiece BPE); "
                "or use the model's Hugging Face folder with its tokenizer.json.",
                field="tokenizer.ggml.model",
            )
        self._family = self._byte_level_family() if self._model == "gpt2" else None

    @property
    def size(self) -> int:
        """Token ids, unused ones included."""
        return len(self._tokens)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template for conversations, if the file has one."""
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def special_id(self, role: str) -> int | None:
        """Id of the token with a role: "bos", "eos", "eot", "eom", "unknown"."""
        token_id = self._metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < self.size:
            raise _contradiction(
                f"has {role}_token_id = {token_id!r}, outside its {self.size} tokens"
            )
        return token_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens at which generation stops."""
        by_role = [self.special_id(role) for role in ("eos", "eot", "eom")]
        texts = self._family.end_tokens if self._family else _SENTENCE_PIECE_END_TOKENS
        by_text = [i for i in self._ids_of(TokenType.CONTROL) if self._tokens[i] in texts]
        return frozenset(i for i in [*by_role, *by_text] if i is not None)

    def build(self) -> tokenizers.Tokenizer:
        """Make the tokenizer; its post-processor adds what the file says plain prompts begin with.

        Raises:
            CheckpointError: Tokens are repeated, or merges do not fit the tokens.
        """
        core = self._byte_level(self._family) if self._family else self._sentence_piece()
        core.add_special_tokens(self._added(TokenType.CONTROL, TokenType.UNKNOWN))
        core.add_tokens(self._added(TokenType.USER_DEFINED))
        core.post_processor = self._prompt_frame()
        return core

    def _array(self, name: str, kind: type) -> Any:
        """Get a list, empty where the file has none; a GGUF array has values of one type."""
        values = self._metadata.get(f"tokenizer.ggml.{name}", [])
        if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
            raise _contradiction(f"has a tokenizer.ggml.{name} that is no list of {kind.__name__}")
        return values

    def _byte_level_family(self) -> _ByteLevelFamily:
        name = self._metadata.get("tokenizer.ggml.pre")
        family = _BYTE_LEVEL_FAMILIES.get(name) if isinstance(name, str) else None
        if family is not None:
            return family
        known = ", ".join(_BYTE_LEVEL_FAMILIES)
        raise UnsupportedError(
            "The GGUF file does not say how its tokenizer splits text (no tokenizer.ggml.pre)."
            if name is None
            else f"tokenizer.ggml.pre is {name!r}, a way of splitting text not known here.",
            remedy="Convert the model again with a current converter, or use its Hugging Face "
            f"folder with tokenizer.json. Known: {known}.",
            field="tokenizer.ggml.pre",
        )

    def _byte_level(self, family: _ByteLevelFamily) -> tokenizers.Tokenizer:
        written = self._array("merges", str)
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in written)]
        core = self._bpe(merges, ignore_merges=family.whole_pieces_first)
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(split), "isolated") for split in family.splits),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if family.composes:
            core.normalizer = normalizers.NFC()
        core.decoder = decoders.ByteLevel()
        return core

    def _sentence_piece(self) -> tokenizers.Tokenizer:
        """SentencePiece BPE; text gets a space in front, also after special tokens (llama.cpp)."""
        unknown = self.special_id("unknown")
        core = self._bpe(
            self._merges_by_score(),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else self._tokens[unknown],
        )
        prefix = self._metadata.get("tokenizer.ggml.add_space_prefix", True)
        spaces = [normalizers.Replace(" ", "▁")]
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), *spaces] if prefix else spaces
        )
        strip = [decoders.Strip(" ", left=1, right=0)] if prefix else []
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return core

    def _merges_by_score(self) -> list[tuple[str, str]]:
        """List all ways to make a piece of two, best-scored piece first, as SentencePiece does."""
        scores = self._array("scores", float)
        if len(scores) != self.size:
            raise _contradiction(f"has {self.size} tokens, but {len(scores)} scores")
        score_of = {self._tokens[i]: scores[i] for i in self._ids_of(TokenType.NORMAL)}
        ranked = [
            (-score, -cut, cut - len(token), token[:cut], token[cut:])
            for token, score in score_of.items()
            for cut in range(1, len(token))
            if token[:cut] in score_of and token[cut:] in score_of
        ]
        ranked.sort(key=itemgetter(0, 1, 2))
        return [(left, right) for *_, left, right in ranked]

    def _bpe(self, merges: Sequence[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
        vocabulary = dict(zip(self._tokens, range(self.size), strict=True))
        if len(vocabulary) != self.size:
            token = next(token for i, token in enumerate(self._tokens) if vocabulary[token] != i)
            raise _contradiction(f"has the token {token!r} twice")
        for token_id in self._ids_of(TokenType.UNUSED):
            del vocabulary[self._tokens[token_id]]
        try:
            return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
        except Exception as error:  # the library raises bare Exception
            raise _contradiction(f"has merges that do not fit its tokens ({error})") from None

    def _ids_of(self, *kinds: TokenType) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self._types, kinds)).tolist()
        return found

    def _added(self, *kinds: TokenType) -> list[AddedToken]:
        special = TokenType.CONTROL in kinds
        phi3 = not self._family and self._metadata.get("general.architecture") == "phi3"
        return [
            AddedToken(
                self._tokens[i],
                normalized=False,
                special=special,
                rstrip=phi3 and self._tokens[i] not in _PHI3_KEEPS_SPACE_AFTER,
            )
            for i in self._ids_of(*kinds)
        ]

    def _prompt_frame(self) -> processors.TemplateProcessing:
        by_default = self._family.adds_bos if self._family else True
        frame, used = ["$A"], []
        for role, default in (("bos", by_default), ("eos", False)):
            if not self._metadata.get(f"tokenizer.ggml.add_{role}_token", default):
                continue
            token_id = self.special_id(role)
            if token_id is None:
                raise _contradiction(f"wants {role} around prompts, but has no {role}_token_id")
            token = self._tokens[token_id]
            frame = [token, *frame] if role == "bos" else [*frame, token]
            used.append((token, token_id))
        return processors.TemplateProcessing(single=frame, special_tokens=used)


def _contradiction(what: str) -> CheckpointError:
    return CheckpointError(
        f"The GGUF file {what}.",
        remedy="Fetch the model again, or convert it again.",
        field="tokenizer.ggml",
    )
