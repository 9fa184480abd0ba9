"""The Python front door: `LLM`, which answers prompts, alone or many together."""

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from peagle.catalog import resolve
from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.draft.peagle import PEagleDrafter
from peagle.draft.proposer import Proposer
from peagle.engine.choice import TokenChooser
from peagle.engine.engine import DEFAULT_MAX_CONCURRENT, Engine
from peagle.engine.logprobs import TokenLogprobs
from peagle.engine.sequence import Origin
from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.statistics import SpeculationStatistics, pooled
from peagle.engine.stops import FinishReason, StopRule
from peagle.errors import InvalidRequestError
from peagle.model.chat_template import ChatTemplate
from peagle.model.detokenizer import Detokenizer
from peagle.model.loading import load_target
from peagle.model.tokenizer import Tokenizer
from peagle.sampling_params import SamplingParams
from peagle.spec import Method, ParallelDraftingSpec

Prompt = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A user's message, a conversation, or `{"prompt": text}` / `{"prompt_token_ids": ids}` as it is."""

_LARGEST_DEFAULT_CACHE: Final = 4 << 30
_SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer.

    Attributes:
        index: Its place among the request's `n` answers.
        text: What it says.
        token_ids: Its tokens, the one that ended it included.
        finish_reason: `stop` or `length`.
        stop_reason: The stop string or token that ended it; None for end-of-sequence and length.
        origins: For each token whether it was the target's own or drafted, and from what.
        logprobs: For each token the model's own log-probabilities, if they were asked for.
        statistics: What speculation did.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    origins: list[Origin]
    logprobs: list[TokenLogprobs] | None
    statistics: SpeculationStatistics


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a request took.

    Attributes:
        ttft_s: From the request to its first token.
        decode_s: From the first token to the last.
        tokens_per_s: Tokens after the first of each answer, per second of `decode_s`.
    """

    ttft_s: float
    decode_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The answers to one prompt.

    Attributes:
        prompt_token_ids: The prompt as the model read it.
        choices: The answers, by index.
        method: How drafts were made: `peagle`, `lookup` or `none`.
        seed: What sampling drew with; give it again to get the same answers.
        timing: How long it took.
    """

    prompt_token_ids: list[int]
    choices: list[Choice]
    method: Method
    seed: int
    timing: Timing

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first answer."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def statistics(self) -> SpeculationStatistics:
        """What speculation did, over all answers."""
        return pooled(choice.statistics for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to an answer.

    Attributes:
        index: Which of the request's answers.
        text: Text that became certain; may be empty.
        token_ids: Its tokens.
        origins: For each of them whether it was the target's own or drafted, and from what.
        finish_reason: Why the answer ended with it, or None.
    """

    index: int
    text: str
    token_ids: list[int]
    origins: list[Origin]
    finish_reason: FinishReason | None


class Generation:
    """A request on its way through the engine. Iterate over it for the pieces as they come.

    Attributes:
        sequences: Its answers in the engine.
    """

    def __init__(
        self,
        llm: "LLM",
        sequences: list[EngineSequence],
        seed: int,
    ) -> None:
        self._llm = llm
        self.sequences = sequences
        self._seed = seed
        self._told = [(0, 0)] * len(sequences)
        self._started = time.perf_counter()
        self._first_token: float | None = None
        self._last_token = self._started

    @property
    def finished(self) -> bool:
        """Whether all answers have ended."""
        return all(sequence.finished for sequence in self.sequences)

    @property
    def result(self) -> Result:
        """The answers, which must all have ended."""
        sequences = self.sequences
        first = self._first_token if self._first_token is not None else self._last_token
        decode_s = self._last_token - first
        later = sum(len(sequence.output_ids) - 1 for sequence in sequences)
        return Result(
            prompt_token_ids=sequences[0].prompt_ids,
            choices=[_choice(index, sequence) for index, sequence in enumerate(sequences)],
            method=sequences[0].spec.method or "none",
            seed=self._seed,
            timing=Timing(
                ttft_s=first - self._started,
                decode_s=decode_s,
                tokens_per_s=later / decode_s if decode_s > 0 else 0.0,
            ),
        )

    def __iter__(self) -> Iterator[Piece]:
        """Run the engine, giving pieces as they come; stopping early drops the request."""
        try:
            while not self.finished:
                self._llm.step()
                yield from self.news()
        finally:
            self.drop()

    def news(self) -> list[Piece]:
        """Give what was written since the last call."""
        pieces = []
        for index, sequence in enumerate(self.sequences):
            told_tokens, told_text = self._told[index]
            if len(sequence.output_ids) == told_tokens:
                continue
            now = time.perf_counter()
            self._first_token = self._first_token or now
            self._last_token = now
            text = sequence.stops.text
            pieces.append(
                Piece(
                    index=index,
                    text=text[told_text:],
                    token_ids=sequence.output_ids[told_tokens:],
                    origins=sequence.origins[told_tokens:],
                    finish_reason=sequence.stops.finish_reason,
                )
            )
            self._told[index] = (len(sequence.output_ids), len(text))
        return pieces

    def drop(self) -> None:
        """Free what unfinished answers hold."""
        self._llm.abort([s for s in self.sequences if not s.finished])


class LLM:
    """A model ready to answer.

    An instance answers one call at a time; calls from several threads wait for one another.

    Args:
        model: A name of the catalog, `hf:ORGANISATION/NAME`, `pypi:…`, a GGUF file or a folder.
        drafter: A P-EAGLE drafter file; None takes the catalog's.
        parallel_drafting_spec: How drafts are made; what is not set keeps the model's default.
        parallel_drafting: False turns speculation off.
        dtype: `auto`, `bfloat16` or `float32`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        kv_cache_bytes: Memory for keys and values; None takes a quarter of what is free, at most
            4 GiB.
        max_concurrent: Most answers that run at once.

    Attributes:
        name: The model's name.
        spec: How drafts are made unless a call says otherwise; its method is set.
        load_s: Seconds that loading took.

    Raises:
        PeagleError: Anything the user can put right, said in one line.
    """

    def __init__(
        self,
        model: str,
        drafter: str | Path | None = None,
        parallel_drafting_spec: ParallelDraftingSpec | Mapping[str, Any] | str | None = None,
        *,
        parallel_drafting: bool = True,
        dtype: str = "auto",
        device: str = "auto",
        kv_cache_bytes: int | None = None,
        max_concurrent: int = DEFAULT_MAX_CONCURRENT,
    ) -> None:
        started = time.perf_counter()
        told = ParallelDraftingSpec.parse(parallel_drafting_spec)
        if max_concurrent < 1:
            raise InvalidRequestError(
                f"max_concurrent cannot be {max_concurrent}.",
                remedy="Allowed: a whole number of at least 1.",
                field="max_concurrent",
            )
        resolved = resolve(model)
        loaded = load_target(resolved.files, dtype=dtype, device=device)
        self.name = resolved.name
        self.target = loaded.model
        self.tokenizer = loaded.tokenizer
        self.weight_bytes = loaded.weight_bytes
        template = resolved.entry.chat_template if resolved.entry else None
        self._template = _chat_template(self.tokenizer, template)
        self._corpus = (
            Corpus.load(resolved.corpus, tokenizer_fingerprint=self.tokenizer.fingerprint())
            if resolved.corpus is not None
            else None
        )
        chosen = Path(drafter) if drafter is not None else resolved.drafter
        budget = kv_cache_bytes if kv_cache_bytes is not None else _default_cache_bytes()
        network = None
        if chosen is not None:
            network = PEagleDrafter.load(
                chosen, self.target, self.tokenizer.fingerprint(), budget=budget
            )
        self._prior = MixturePrior.load()
        self.engine = Engine(self.target, self.target.new_cache(budget), network, max_concurrent)
        self._catalog_spec = resolved.entry.default_spec if resolved.entry else None
        self._lock = threading.Lock()
        self.spec = ParallelDraftingSpec()
        self.spec = self._effective_spec(told, parallel_drafting=parallel_drafting)
        self.load_s = time.perf_counter() - started

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return min(self.target.config.context_length, self.engine.kv_cache.total_positions)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        parallel_drafting_spec: ParallelDraftingSpec | Mapping[str, Any] | str | None = None,
        parallel_drafting: bool = True,
    ) -> list[Result]:
        """Answer prompts together, each as it would be answered alone.

        Args:
            prompts: One prompt or a list of them. A prompt is a string (a user's message, put
                into the model's chat template; plain text for a model without one), a
                conversation (a list of messages with `role` and `content`), or a mapping with
                `prompt` (text that is taken as it is) or `prompt_token_ids`.
            params: How tokens are chosen, for all prompts or one for each; greedy if None.
            parallel_drafting_spec: How drafts are made, instead of the model's own way.
            parallel_drafting: False turns speculation off for this call.

        Returns:
            One result a prompt, in the same order.

        Raises:
            PeagleError: A prompt or setting is impossible; nothing was generated then.
        """
        many = _as_list(prompts)
        settings = _for_each(params, len(many))
        spec = self._effective_spec(
            ParallelDraftingSpec.parse(parallel_drafting_spec), parallel_drafting=parallel_drafting
        )
        generations = [
            self._begin(prompt, one, spec) for prompt, one in zip(many, settings, strict=True)
        ]
        try:
            for generation in generations:
                self._add(generation.sequences)
            while not all(generation.finished for generation in generations):
                self.step()
                for generation in generations:
                    generation.news()
        finally:
            for generation in generations:
                generation.drop()
        return [generation.result for generation in generations]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parallel_drafting_spec: ParallelDraftingSpec | Mapping[str, Any] | str | None = None,
        parallel_drafting: bool = True,
    ) -> Generation:
        """Answer one prompt, giving text as it comes.

        Args:
            prompt: As in `generate`.
            params: How tokens are chosen; greedy if None.
            parallel_drafting_spec: How drafts are made, instead of the model's own way.
            parallel_drafting: False turns speculation off for this call.

        Returns:
            An iterator over pieces, with the whole as `result` after the last.

        Raises:
            PeagleError: The prompt or a setting is impossible.
        """
        spec = self._effective_spec(
            ParallelDraftingSpec.parse(parallel_drafting_spec), parallel_drafting=parallel_drafting
        )
        generation = self._begin(prompt, params or SamplingParams(), spec)
        self._add(generation.sequences)
        return generation

    def step(self) -> None:
        """Advance all running answers by one step."""
        with self._lock:
            self.engine.step()

    def abort(self, sequences: Sequence[EngineSequence]) -> None:
        """Drop answers and free what they hold."""
        with self._lock:
            self.engine.abort(sequences)

    def encode(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into tokens, as `generate` reads it.

        Raises:
            InvalidRequestError: It is empty, of an unknown form, or holds impossible tokens.
        """
        if isinstance(prompt, str):
            if self._template is None:
                return self._checked(self.tokenizer.encode_prompt(prompt))
            if not prompt:
                return self._checked([])
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, Mapping):
            return self._checked(self._plain(prompt))
        if self._template is None:
            raise InvalidRequestError(
                f"{self.name} has no chat template, so it cannot read a conversation.",
                remedy="Give the prompt as text.",
                field="messages",
            )
        return self._checked(self.tokenizer.encode(self._template.render(prompt)))

    def _plain(self, prompt: Mapping[str, Any]) -> list[int]:
        match dict(prompt):
            case {"prompt": str(text), **rest} if not rest:
                return self.tokenizer.encode_prompt(text)
            case {"prompt_token_ids": ids, **rest} if not rest:
                return list(ids)
        raise InvalidRequestError(
            f"A prompt cannot be an object with the keys {', '.join(map(repr, prompt))}.",
            remedy='Give text, a list of messages, {"prompt": text} or {"prompt_token_ids": ids}.',
            field="prompt",
        )

    def _checked(self, ids: list[int]) -> list[int]:
        vocab_size = self.target.config.vocab_size
        if not ids:
            raise InvalidRequestError(
                "The prompt is empty.", remedy="Write what the model should answer.", field="prompt"
            )
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    f"prompt_token_ids holds {token!r}.",
                    remedy=f"Token ids are whole numbers from 0 to {vocab_size - 1}.",
                    field="prompt_token_ids",
                )
        return ids

    def _begin(self, prompt: Prompt, params: SamplingParams, spec: ParallelDraftingSpec) -> Generation:
        """Check a request and make its sequences, without queueing them."""
        prompt_ids = self.encode(prompt)
        room = self.context_length - len(prompt_ids)
        if room < 1:
            raise InvalidRequestError(
                f"The prompt has {len(prompt_ids)} tokens, but {self.name} takes "
                f"{self.context_length} of prompt and answer together here.",
                remedy="Shorten the prompt.",
                field="prompt",
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {params.max_tokens}, but after {len(prompt_ids)} tokens of prompt "
                f"{room} of the context's {self.context_length} are left.",
                remedy=f"Lower max_tokens to {room} or less, or leave it out.",
                field="max_tokens",
            )
        if params.min_tokens > (params.max_tokens or room):
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, more than the answer can have "
                f"({params.max_tokens or room}).",
                remedy="Lower min_tokens.",
                field="min_tokens",
            )
        seed = params.seed if params.seed is not None else secrets.randbits(_SEED_BITS)
        sequences = [
            self._sequence(prompt_ids, params, spec, seed, index, room) for index in range(params.n)
        ]
        return Generation(self, sequences, seed)

    def _sequence(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        spec: ParallelDraftingSpec,
        seed: int,
        index: int,
        room: int,
    ) -> EngineSequence:
        tokenizer = self.tokenizer
        return EngineSequence(
            prompt_ids=prompt_ids,
            params=params,
            spec=spec,
            positions=len(prompt_ids) + min(room, params.max_tokens or room),
            chooser=TokenChooser(
                params,
                prompt_ids,
                vocab_size=self.target.config.vocab_size,
                eos_ids=tokenizer.eos_token_ids,
                seed=seed,
                choice=index,
            ),
            stops=StopRule(
                params,
                eos_ids=tokenizer.eos_token_ids,
                context_room=room,
                detokenizer=Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens),
            ),
            proposer=None
            if spec.method == "none"
            else Proposer(prompt_ids, spec=spec, corpus=self._corpus, prior=self._prior),
        )

    def _add(self, sequences: Sequence[EngineSequence]) -> None:
        with self._lock:
            for sequence in sequences:
                self.engine.add(sequence)

    def _effective_spec(
        self, told: ParallelDraftingSpec, *, parallel_drafting: bool
    ) -> ParallelDraftingSpec:
        """Lay what was told over the model's own way, over the catalog's; the method is then set.

        Raises:
            InvalidRequestError: The spec wants a source that this model does not have.
        """
        if not parallel_drafting:
            return ParallelDraftingSpec(method="none")
        layers = [spec for spec in (self._catalog_spec, self.spec, told) if spec is not None]
        fields = {name: value for spec in layers for name, value in spec.model_dump().items()}
        has_network = self.engine.drafter is not None
        fields.setdefault("method", "peagle" if has_network else "lookup")
        if fields["method"] == "peagle" and not has_network:
            if told.method == "peagle":
                raise InvalidRequestError(
                    f'method is "peagle", but {self.name} has no drafter.',
                    remedy='Give one with drafter=, or use method "lookup".',
                    field="method",
                )
            fields["method"] = "lookup"
        spec = ParallelDraftingSpec.model_construct(_fields_set=set(fields), **fields)
        if spec.method == "lookup" and not spec.lookup and self._corpus is None:
            raise InvalidRequestError(
                f"lookup is false, and {self.name} has no corpus to draft from.",
                remedy='Turn lookup on, or use method "none".',
                field="lookup",
            )
        return spec


def _choice(index: int, sequence: EngineSequence) -> Choice:
    assert sequence.stops.finish_reason is not None
    return Choice(
        index=index,
        text=sequence.stops.text,
        token_ids=sequence.output_ids,
        finish_reason=sequence.stops.finish_reason,
        stop_reason=sequence.stops.stop_reason,
        origins=sequence.origins,
        logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
        statistics=sequence.statistics,
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a list of messages is one conversation."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, Mapping) and "role" in item for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(
            f"There are {count} prompts but {len(params)} sampling parameters.",
            remedy="Give one for all, or one for each prompt.",
            field="params",
        )
    return list(params)


def _chat_template(tokenizer: Tokenizer, replacement: str | None) -> ChatTemplate | None:
    if replacement is not None:
        return ChatTemplate(
            replacement, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
    return ChatTemplate.of(tokenizer) if tokenizer.chat_template is not None else None


def _default_cache_bytes() -> int:
    return min(psutil.virtual_memory().available // 4, _LARGEST_DEFAULT_CACHE)
