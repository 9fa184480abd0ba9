"""Text to token ids and back, for the vocabulary that a model was trained with."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import tokenizers
from tokenizers import AddedToken

from peagle.catalog.gguf_header import read_gguf_header
from peagle.errors import CheckpointError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from peagle.model.gguf_tokenizer import GGUFVocabulary
from peagle.model.hugging_face_folder import write_json

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NAMED_TOKENS: Final = (
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"
)  # fmt: skip


def _byte_alphabet() -> dict[str, int]:
    """Characters that stand for bytes in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTE_ALPHABET: Final = _byte_alphabet()


class Tokenizer:
    """A model's vocabulary with the rules that cut text into it.

    Encoding, decoding and special tokens are those of `transformers` for the same vocabulary.
    An instance may be used from several threads.

    Args:
        core: The encoder and decoder.
        vocab_size: One more than the highest token id.
        bos_token_id: The token that begins a sequence, if there is one.
        eos_token_id: The token that a chat template calls `eos_token`.
        eos_token_ids: All tokens at which generation stops.
        chat_template: The Jinja template for conversations, if the model has one.

    Attributes:
        byte_level: Tokens are strings of bytes; otherwise they are SentencePiece's pieces of text
            with a token per byte for the rest.
        strips_first_space: Decoding drops one space at the very beginning.
        special_ids: Tokens that are left out of text with `skip_special_tokens`.

    Raises:
        UnsupportedError: The decoder is of a kind whose tokens cannot be streamed exactly.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        bos_token_id: int | None,
        eos_token_id: int | None,
        eos_token_ids: Iterable[int],
        chat_template: str | None,
    ) -> None:
        self._core = core
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        self.chat_template = chat_template
        self.byte_level, self.strips_first_space = _decoding(core)
        self.special_ids = frozenset(
            token_id for token_id, token in core.get_added_tokens_decoder().items() if token.special
        )

    @classmethod
    def from_gguf(cls, file: str | Path) -> Self:
        """Build the tokenizer that a GGUF file describes.

        Raises:
            ModelNotFoundError: There is no such file.
            CheckpointError: It is no whole GGUF file, or its vocabulary is missing or broken.
            UnsupportedError: The kind of tokenizer or of pre-tokeniser is not known.
        """
        vocabulary = GGUFVocabulary(read_gguf_header(Path(file)).metadata)
        return cls(
            vocabulary.build(),
            vocab_size=vocabulary.size,
            bos_token_id=vocabulary.special_id("bos"),
            eos_token_id=vocabulary.special_id("eos"),
            eos_token_ids=vocabulary.end_ids,
            chat_template=vocabulary.chat_template,
        )

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Build the tokenizer of a Hugging Face folder.

        Reads `tokenizer.json`, whose post-processor alone decides about BOS (as in transformers
        5), and where present `tokenizer_config.json`, `special_tokens_map.json`,
        `generation_config.json`, `config.json` and `chat_template.jinja`.

        Raises:
            ModelNotFoundError: The folder does not exist.
            CheckpointError: `tokenizer.json` is missing, a file is broken, or a token that the
                configuration names is not in the vocabulary.
            UnsupportedError: The tokenizer's decoder is of an unknown kind.
        """
        return cls(**_FolderTokenizer(Path(folder)).parts())

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a sequence."""
        return None if self.bos_token_id is None else self._core.id_to_token(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a sequence."""
        return None if self.eos_token_id is None else self._core.id_to_token(self.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """Cut text into tokens; a special token written in the text becomes that token.

        Nothing is added around the text, which is what a rendered chat template wants.

        Raises:
            InvalidRequestError: The text is no string, or holds a lone surrogate.
        """
        return self._encoded(text, framed=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Cut a plain prompt into tokens, with the BOS that the model's tokenizer adds, if any.

        Raises:
            InvalidRequestError: The text is no string, or holds a lone surrogate.
        """
        return self._encoded(text, framed=True)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Put tokens together to text; ids without a token are left out.

        Bytes that are no UTF-8 become U+FFFD.

        Raises:
            InvalidRequestError: An id is negative or no whole number.
        """
        try:
            return self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise _not_an_id(ids) from None

    def piece(self, token_id: int) -> str | None:
        """Tell how the vocabulary spells a token; None where there is no such token.

        Raises:
            InvalidRequestError: The id is negative or no whole number.
        """
        try:
            return self._core.id_to_token(token_id)
        except (OverflowError, TypeError):
            raise _not_an_id([token_id]) from None

    def token_bytes(self, token_id: int) -> bytes:
        """Give the bytes that a token adds to the text; none where there is no such token.

        A token may hold part of a character. Joined over the ids, byte-level tokens are the text
        that `decode` gives with special tokens kept.

        Raises:
            InvalidRequestError: The id is negative or no whole number.
        """
        piece = self.piece(token_id)
        if piece is None:
            return b""
        if self.byte_level:
            try:
                return bytes([_BYTE_ALPHABET[character] for character in piece])
            except KeyError:
                return piece.encode()
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()

    def is_byte(self, token_id: int) -> bool:
        """Tell whether a SentencePiece token stands for one byte."""
        piece = self.piece(token_id)
        return not self.byte_level and piece is not None and bool(_BYTE_PIECE.fullmatch(piece))

    def save(self, folder: Path, *, chat_template: str | None) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, as transformers reads them.

        Args:
            folder: An existing folder.
            chat_template: The Jinja template for conversations, if there is one.

        Raises:
            OSError: The folder cannot be written.
        """
        named = {
            "bos_token": self.bos_token, "eos_token": self.eos_token, "chat_template": chat_template
        }  # fmt: skip
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{name: value for name, value in named.items() if value is not None},
        }
        # The library's own writing raises a bare Exception where the disk refuses.
        (folder / "tokenizer.json").write_text(self._core.to_str(pretty=True), "utf-8")
        write_json(folder / "tokenizer_config.json", settings)

    def as_json(self) -> str:
        """Give the vocabulary and its rules as `tokenizer.json` holds them."""
        return self._core.to_str()

    def fingerprint(self) -> str:
        """Hash the vocabulary and its merges, in hexadecimal.

        Equal for a model's GGUF file and its Hugging Face folder; unequal where ids mean other
        tokens or text would be cut in another way by the merges. Drafters and corpora keep it.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        vocabulary = self._core.get_vocab()
        merges = json.loads(self._core.to_str())["model"].get("merges", [])
        told = [
            sorted(vocabulary.values()),
            sorted(vocabulary, key=vocabulary.__getitem__),
            list(chain.from_iterable(merges)),
        ]
        written = json.dumps(told, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()

    def _encoded(self, text: str, *, framed: bool) -> list[int]:
        try:
            return self._core.encode(text, add_special_tokens=framed).ids
        except TypeError:
            raise _not_text(text) from None


def _decoding(core: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """Recognise the two decoders that the detokeniser follows token by token."""
    state = {} if core.decoder is None else json.loads(core.decoder.__getstate__())
    steps = state.get("decoders", [state])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return True, False
    replaces_mark = steps[0].get("pattern") == {"String": "▁"} and steps[0].get("content") == " "
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and replaces_mark:
        if kinds[3:] == []:
            return False, False
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        if steps[3:] == [strip]:
            return False, True
    raise UnsupportedError(
        f"The tokenizer puts text together in a way not supported here ({kinds}).",
        remedy="Supported are byte-level BPE and SentencePiece BPE with byte fallback.",
        field="tokenizer.json",
    )


def _not_text(text: object) -> InvalidRequestError:
    if not isinstance(text, str):
        return InvalidRequestError(
            f"The text is of type {type(text).__name__}.", remedy="Give a string.", field="prompt"
        )
    place = next(at for at, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    return InvalidRequestError(
        f"The text has the lone surrogate {text[place]!r} at character {place}.",
        remedy="Send whole characters: surrogates only come in pairs, within UTF-16.",
        field="prompt",
    )


def _not_an_id(ids: Sequence[object]) -> InvalidRequestError:
    wrong = next(
        (i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 2**32), ids
    )
    return InvalidRequestError(
        f"{wrong!r} is no token id.", remedy="Token ids are whole numbers from 0 up.", field="ids"
    )


def _token_text(setting: object) -> str | None:
    """Read a token from a setting: its text, or an object with its text as `content`."""
    text = setting.get("content") if isinstance(setting, Mapping) else setting
    return text if isinstance(text, str) else None


class _FolderTokenizer:
    """Reads the files that a Hugging Face folder spreads a tokenizer over."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ModelNotFoundError(
                f"There is no folder {folder}.", remedy="Check the path.", field="model"
            )
        self._folder = folder
        self._settings = {
            **self._json("special_tokens_map.json"),
            **self._json("tokenizer_config.json"),
        }
        self._core = self._load()

    def parts(self) -> dict[str, Any]:
        """Collect the arguments of `Tokenizer`."""
        bos, eos = self._id_of("bos_token"), self._id_of("eos_token")
        return {
            "core": self._core,
            "vocab_size": max(self._core.get_vocab().values()) + 1,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "eos_token_ids": self._end_ids(eos),
            "chat_template": self._chat_template(),
        }

    def _load(self) -> tokenizers.Tokenizer:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{self._folder} has no tokenizer.json.",
                remedy="Fetch it with the model, or let transformers write it: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
                field="tokenizer.json",
            )
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise self._broken(path.name, error) from None
        core.no_truncation()
        core.no_padding()
        named = [self._settings.get(name) for name in _NAMED_TOKENS]
        for several in ("additional_special_tokens", "extra_special_tokens"):
            named += self._settings.get(several) or ()
        core.add_special_tokens(
            [
                AddedToken(text, normalized=False, special=True)
                for text in map(_token_text, named)
                if text and core.token_to_id(text) is not None
            ]
        )
        return core

    def _id_of(self, name: str) -> int | None:
        text = _token_text(self._settings.get(name))
        if text is None:
            return None
        token_id = self._core.token_to_id(text)
        if token_id is None:
            raise CheckpointError(
                f"{self._folder} names {text!r} as {name}, which its vocabulary lacks.",
                remedy="Fetch tokenizer.json and tokenizer_config.json of the same model.",
                field=name,
            )
        return token_id

    def _end_ids(self, eos: int | None) -> set[int]:
        told = self._json("generation_config.json") or self._json("config.json")
        ids = told.get("eos_token_id")
        several = ids if isinstance(ids, list) else [ids]
        found = {i for i in [*several, eos] if i is not None}
        if not all(isinstance(i, int) for i in found):
            raise CheckpointError(
                f"{self._folder} has the eos_token_id {ids!r}.",
                remedy="It must be a token id or a list of them; fetch the model again.",
                field="eos_token_id",
            )
        return found

    def _chat_template(self) -> str | None:
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise self._broken(path.name, error) from None
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self._broken(name, error) from None
        if not isinstance(content, dict):
            raise self._broken(name, TypeError("not an object"))
        return content

    def _broken(self, name: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self._folder / name} cannot be read: {error}.",
            remedy="Fetch the file again.",
            field=name,
        )
