"""Next-token logits of transformers' models: the prompt is run once, and its cache serves all continuations.

Encoder-decoder models run their encoder and the decoder's first tokens once, causal models their prompt. A
`Branch` is a selection of these rows with a copy of their cache. No class of transformers is imported: a
cache is copied tensor by tensor, which works for attention and Mamba caches of transformers 4.57 and 5.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_USED = ("input_ids", "attention_mask")
_IGNORED = ("token_type_ids",)  # some tokenizers return them for models that do not use them


@dataclass
class Counts:
    """Number of calls of the model, and of rows in all calls."""

    passes: int = 0
    rows: int = 0


class Prompt:
    """A batch of prompts, run once.

    Args:
        model: transformers' encoder-decoder or causal language model, in evaluation mode.
        inputs: what a tokenizer returns: `input_ids` and `attention_mask`, `[batch, seq]`.
        prefix_ids: tokens that every answer starts with.

    Raises:
        TypeError: inputs of another kind, or a model without a cache.
        ValueError: a model in training mode, padding on the right of a causal model's prompt, or no start
            token for a decoder.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Tensor], prefix_ids: Sequence[int] = ()):
        input_ids, mask = _check_inputs(model, inputs)
        self.counts = Counts()
        prefix = input_ids.new_tensor(list(prefix_ids)).expand(len(input_ids), -1)
        if model.config.is_encoder_decoder:
            start = input_ids.new_full((len(input_ids), 1), _start_token(model))
            encoded = model.get_encoder()(input_ids=input_ids, attention_mask=mask)[0]
            empty = Branch(_EncoderDecoder(model, encoded), self.counts, mask, decoder=True)
            tokens = torch.cat([start, prefix], dim=-1)
        else:
            _check_left_padding(mask)
            # `extend` adds the prompt's mask together with its tokens.
            empty = Branch(_Causal(model), self.counts, mask[:, :0], padding=mask)
            tokens = torch.cat([input_ids, prefix], dim=-1)
        self.logits = empty.extend(tokens)[:, -1]
        self.root = replace(empty, padding=None)

    def __len__(self) -> int:
        return len(self.logits)


@dataclass
class Branch:
    """Continuations of the prompt; the cache holds the tokens of each row.

    Args:
        call: runs the model.
        counts: shared by all branches of a prompt.
        mask: `[rows, seen]`, attention mask of the encoder's inputs, or of all tokens so far.
        decoder: True for an encoder-decoder, whose mask covers the encoder's inputs and does not grow.
        cache: the model's cache.
        padding: `[rows, seq]`, attention mask of the prompt, for the first `extend`.
    """

    call: Callable[[Branch, Tensor], tuple[Tensor, Any]]
    counts: Counts
    mask: Tensor
    decoder: bool = False
    cache: Any = None
    padding: Tensor | None = None

    def select(self, rows: Tensor) -> Branch:
        """Copy some rows, in any order and number; this branch stays as it is."""
        cache = _map_rows(self.cache, lambda held: held.index_select(0, rows.to(held.device)), len(self.mask))
        return replace(self, mask=self.mask.index_select(0, rows), cache=cache)

    def first(self, count: int) -> Branch:
        """Return a branch of the first rows that shares this one's memory; do not use this one afterwards."""
        cache = _map_rows(self.cache, lambda rows: rows[:count], len(self.mask))
        return replace(self, mask=self.mask[:count], cache=cache)

    def extend(self, tokens: Tensor) -> Tensor:
        """Write `[rows, n]` tokens; return the logits after them, `[rows, 1 or n, vocab]`.

        Raise a TypeError if the model returns no cache.
        """
        if not self.decoder:
            new = torch.ones_like(tokens)
            if self.padding is not None:
                new[:, : self.padding.shape[-1]] = self.padding
            self.mask = torch.cat([self.mask, new.to(self.mask.dtype)], dim=-1)
        logits, self.cache = self.call(self, tokens)
        if self.cache is None:
            raise TypeError(
                "the model returned no cache. Expected a model of transformers that returns past_key_values "
                "or cache_params when it is called with use_cache=True."
            )
        self.counts.passes += 1
        self.counts.rows += len(tokens)
        return logits

    def run(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Write up to `lengths` tokens of `[rows, n]`, padded on the right; return `[rows, vocab]`.

        The branch cannot be extended afterwards: the cache of a shorter row holds its padding.
        """
        last = (lengths - 1).to(tokens.device)
        rows = torch.arange(len(tokens), device=tokens.device)
        if _is_attention(self.cache):
            return self.extend(tokens)[rows, last]
        # A recurrent model starts a longer input from an empty state: only single tokens can continue from a
        # cache.
        logits = self.extend(tokens[:, :1])[:, -1]
        for i in range(1, tokens.shape[-1]):
            logits = torch.where((last >= i)[:, None], self.extend(tokens[:, i : i + 1])[:, -1], logits)
        return logits


class _EncoderDecoder:
    def __init__(self, model: Any, encoded: Tensor):
        self.model, self.encoded = model, encoded

    def __call__(self, branch: Branch, tokens: Tensor) -> tuple[Tensor, Any]:
        encoded = self.encoded
        if branch.cache is not None:
            if not hasattr(branch.cache, "cross_attention_cache"):
                raise TypeError(
                    f"{type(self.model).__name__} returned a {type(branch.cache).__name__}: expected an "
                    "EncoderDecoderCache, with the keys of the encoder's output"
                )
            # The encoder's output is already in the cache. A view of the right shape is passed, so that no
            # rows are copied.
            encoded = encoded[:1].expand(len(tokens), -1, -1)
        output = self.model(
            encoder_outputs=(encoded,),
            attention_mask=branch.mask,
            decoder_input_ids=tokens,
            past_key_values=branch.cache,
            use_cache=True,
        )
        return output.logits, output.past_key_values


class _Causal:
    def __init__(self, model: Any):
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        self.recurrent = "cache_params" in accepted
        self.positions = "position_ids" in accepted
        # Mamba in transformers 4 needs the position of the token after its cache; later versions do not.
        self.cache_position = self.recurrent and "cache_position" in accepted
        self.keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def __call__(self, branch: Branch, tokens: Tensor) -> tuple[Tensor, Any]:
        options: dict[str, Any] = {} if branch.cache is not None else dict(self.keep)
        if self.positions:
            positions = (branch.mask.cumsum(-1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -tokens.shape[-1] :]
        if not self.recurrent:
            options["past_key_values"] = branch.cache
            options["attention_mask"] = branch.mask
        else:
            options["cache_params"] = branch.cache
            if branch.cache is None:
                options["attention_mask"] = branch.mask
            elif self.cache_position:
                seen = max(branch.mask.shape[-1], self.model.config.conv_kernel)
                options["cache_position"] = torch.tensor([seen], device=tokens.device)
        output = self.model(input_ids=tokens, use_cache=True, **options)
        return output.logits, output.cache_params if self.recurrent else output.past_key_values


def end_tokens(model: Any, eos_token_id: int | Sequence[int] | None) -> list[int]:
    """Return the tokens that end a text: those given, or else the model's.

    Raises:
        ValueError: neither is known.
    """
    for source in (None, getattr(model, "generation_config", None), model.config):
        given = eos_token_id if source is None else getattr(source, "eos_token_id", None)
        if given is not None:
            return [given] if isinstance(given, int) else list(given)
    raise ValueError(
        "the token that ends a text is not known: the model's configuration has no eos_token_id. "
        "Pass eos_token_id=tokenizer.eos_token_id."
    )


def _map_rows(held: Any, take: Callable[[Tensor], Tensor], count: int) -> Any:
    """Copy a cache of `count` rows, applying `take` to each of its tensors."""
    if isinstance(held, Tensor):
        return take(held) if held.dim() > 1 and len(held) == count else held
    if isinstance(held, list | tuple):
        return type(held)(_map_rows(item, take, count) for item in held)
    if isinstance(held, dict):
        return {key: _map_rows(item, take, count) for key, item in held.items()}
    if type(held).__name__.endswith(("Cache", "Layer")):
        made = copy.copy(held)
        vars(made).update({name: _map_rows(item, take, count) for name, item in vars(held).items()})
        return made
    return held


def _is_attention(cache: Any) -> bool:
    """Whether several tokens can be appended in one call: all layers are attention layers."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return bool(layers) and all(
        hasattr(layer, "keys") and not hasattr(layer, "conv_states") for layer in layers
    )


def _check_inputs(model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), Tensor):
        raise TypeError(
            "inputs: expected what a tokenizer returns with return_tensors='pt', a mapping with the tensor "
            f"'input_ids'; given {type(inputs).__name__}"
        )
    if unknown := sorted(set(inputs) - {*_USED, *_IGNORED}):
        raise TypeError(f"inputs: expected only {' and '.join(_USED)}: remove {', '.join(unknown)}")
    if model.training:
        raise ValueError(
            "the model is in training mode, where dropout changes its answers: call model.eval()"
        )
    input_ids = inputs["input_ids"]
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(
            f"inputs: input_ids of shape {list(input_ids.shape)}: expected [batch, seq], both above 0"
        )
    mask = inputs.get("attention_mask")
    return input_ids, torch.ones_like(input_ids) if mask is None else mask


def _check_left_padding(mask: Tensor) -> None:
    # As a sum over the batch: one synchronization.
    if bool(((mask[:, 1:] < mask[:, :-1]).any() | (mask[:, -1] == 0).any()).item()):
        raise ValueError(
            "a prompt has padding on its right, where the answer should begin. Expected prompts of a "
            "decoder-only model to be padded on the left: set tokenizer.padding_side = 'left'."
        )


def _start_token(model: Any) -> int:
    for name in ("decoder_start_token_id", "bos_token_id"):
        for source in (getattr(model, "generation_config", None), model.config):
            if isinstance(start := getattr(source, name, None), int):
                return start
    raise ValueError(
        "the token that a decoder starts with is not known: set model.config.decoder_start_token_id"
    )
