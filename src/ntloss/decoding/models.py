"""Next-token logits of transformers' models: the prompt is run once, and its cache serves all continuations.

Encoder-decoder models run their encoder and the decoder's first tokens once, causal models their prompt. A
`Branch` is a selection of these rows with a copy of their cache. No class of transformers is imported: a
cache is copied tensor by tensor, which works for attention and Mamba caches of transformers 4.57 and 5.

Each row has the prompt's cache. For attention, that is 2 * layers * key-value heads * head size * tokens
numbers, 46 kB a token for SmolLM2-135M in float32. While rows are copied, there are two copies.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_USED = ("input_ids", "attention_mask")
_IGNORED = ("token_type_ids",)  # some tokenizers return them for models that do not use them
# Largest total variation between the next token's probabilities of a padded prompt and of the same without.
_SAME = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
_HEAD_ROWS = 8192  # rows of a half-precision head that are converted to float32 at a time


@dataclass
class Counts:
    """Number of calls of the model, and of rows in all calls."""

    passes: int = 0
    rows: int = 0


class Prompt:
    """A batch of prompts, run once.

    Args:
        model: transformers' encoder-decoder or causal language model, in evaluation mode, also wrapped by
            PEFT, `torch.compile` or data parallelism.
        inputs: what a tokenizer returns: `input_ids` and `attention_mask`, `[batch, seq]`.
        prefix_ids: tokens that every answer starts with.

    Raises:
        TypeError: inputs of another kind, a model without a cache, or one with learned prompts of PEFT.
        ValueError: a model in training mode, padding on the right of a causal model's prompt, on the left of
            a model that does not support it, logits that are NaN, or no start token for a decoder.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Tensor], prefix_ids: Sequence[int] = ()):
        inner = _innermost(model)
        input_ids, mask = _check_inputs(model, inputs)
        self.counts = Counts()
        prefix = input_ids.new_tensor(list(prefix_ids)).expand(len(input_ids), -1)
        # Replicas on several devices would have to merge their caches.
        model = model.module if isinstance(model, nn.DataParallel) else model
        if inner.config.is_encoder_decoder:
            start = input_ids.new_full((len(input_ids), 1), _start_token(inner))
            input_ids, mask = _pad_right(input_ids, mask)
            encoded = inner.get_encoder()(input_ids=input_ids, attention_mask=mask)
            empty = Branch(_EncoderDecoder(model, inner, encoded), self.counts, mask, decoder=True)
            tokens = torch.cat([start, prefix], dim=-1)
        else:
            padded = _is_padded_on_left(mask)
            call = _Causal(model, inner, padded)
            # `extend` adds the prompt's mask together with its tokens.
            empty = Branch(call, self.counts, mask[:, :0], padding=mask)
            tokens = torch.cat([input_ids, prefix], dim=-1)
        self.logits = empty.extend(tokens)[:, -1]
        self.root = replace(empty, padding=None)
        if not inner.config.is_encoder_decoder and padded and not call.positions:
            self._check_padding(call, tokens, mask)
        _check_logits(self.logits)

    def _check_padding(self, call: _Causal, tokens: Tensor, mask: Tensor) -> None:
        """Run the prompt with the most padding without it; raise a ValueError if that changes its logits."""
        row = int(mask.sum(-1).argmin())
        alone = tokens[row : row + 1, int((mask[row] == 0).sum()) :]
        logits = Branch(call, self.counts, mask[:1, :0]).extend(alone)[0, -1]
        difference = (logits.softmax(-1) - self.logits[row].softmax(-1)).abs().sum().item() / 2
        if difference > _SAME[next(call.inner.parameters()).dtype]:
            raise ValueError(
                f"{type(call.inner).__name__} does not support padding on the left: without its padding, "
                f"prompt {row} has other next tokens (total variation {difference:.2g}). Pass prompts of one "
                "length at a time."
            )

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
    def __init__(self, model: Any, inner: Any, encoded: Any):
        self.model, self.inner, self.encoded = model, inner, encoded

    def __call__(self, branch: Branch, tokens: Tensor) -> tuple[Tensor, Any]:
        encoded = self.encoded
        if branch.cache is not None:
            if not hasattr(branch.cache, "cross_attention_cache"):
                raise TypeError(
                    f"{type(self.inner).__name__} returned a {type(branch.cache).__name__}: expected an "
                    "EncoderDecoderCache, with the keys of the encoder's output"
                )
            # The encoder's output is already in the cache. A view of the right shape is passed, so that no
            # rows are copied.
            states = encoded[0][:1].expand(len(tokens), -1, -1)
            encoded = (states,) if isinstance(encoded, tuple) else type(encoded)(last_hidden_state=states)
        with _float32_logits(self.inner):
            output = self.model(
                encoder_outputs=encoded,
                attention_mask=branch.mask,
                decoder_input_ids=tokens,
                past_key_values=branch.cache,
                use_cache=True,
            )
        return output.logits, getattr(output, "past_key_values", None)


class _Causal:
    def __init__(self, model: Any, inner: Any, padded: bool):
        self.model, self.inner, self.padded = model, inner, padded
        accepted = _parameters(inner)
        self.recurrent = "cache_params" in accepted
        self.positions = "position_ids" in accepted
        self.first = _first_position(inner)
        # Mamba in transformers 4 needs the position of the token after its cache; later versions do not.
        self.cache_position = self.recurrent and "cache_position" in accepted
        self.keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def __call__(self, branch: Branch, tokens: Tensor) -> tuple[Tensor, Any]:
        options: dict[str, Any] = {} if branch.cache is not None else dict(self.keep)
        if self.positions and self.padded:
            positions = (branch.mask.cumsum(-1) - 1).clamp(min=0) + self.first
            options["position_ids"] = positions[:, -tokens.shape[-1] :]
        if not self.recurrent:
            options["past_key_values"] = branch.cache
            options["attention_mask"] = branch.mask
        else:
            options["cache_params"] = branch.cache
            if branch.cache is None:
                options["attention_mask"] = branch.mask
            elif self.cache_position:
                seen = max(branch.mask.shape[-1], self.inner.config.conv_kernel)
                options["cache_position"] = torch.tensor([seen], device=tokens.device)
        with _float32_logits(self.inner):
            output = self.model(input_ids=tokens, use_cache=True, **options)
        return output.logits, getattr(output, "cache_params" if self.recurrent else "past_key_values", None)


@contextmanager
def _float32_logits(inner: Any) -> Iterator[None]:
    """Let a head of half precision return float32 logits; what the model does with them follows in float32.

    Logits of 20 are 0.125 apart in bfloat16, which moves quantiles more than the rounding of all layers.
    """
    head = inner.get_output_embeddings()
    if type(head) is not nn.Linear:  # adapters and quantized heads do more than multiply
        yield
        return

    def again(head: nn.Linear, args: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        # A compiled graph would keep the hook after its removal.
        half = logits.dtype in (torch.bfloat16, torch.float16) and not torch.compiler.is_compiling()
        if not half or args[0].device != head.weight.device:
            return None
        states, exact = args[0].float(), torch.empty_like(logits, dtype=torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            for i in range(0, len(head.weight), _HEAD_ROWS):
                bias = None if head.bias is None else head.bias[i : i + _HEAD_ROWS].float()
                rows = head.weight[i : i + _HEAD_ROWS].float()
                exact[..., i : i + _HEAD_ROWS] = F.linear(states, rows, bias)
        return exact

    hook = head.register_forward_hook(again)
    try:
        yield
    finally:
        hook.remove()


def _innermost(model: Any) -> Any:
    """Return the model of transformers inside PEFT, `torch.compile` and data parallelism."""
    outer = model
    while True:
        if any(config.is_prompt_learning for config in _adapters(model)):
            raise TypeError(
                f"{type(model).__name__} puts learned prompts in front of the tokens: expected a model with "
                "the tokens' embeddings alone, such as one with LoRA"
            )
        children = list(model.children()) if isinstance(model, nn.Module) else []
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif len(children) == 1 and "input_ids" not in _parameters(model):
            model = children[0]
        else:
            break
    if not hasattr(model, "config"):
        raise TypeError(f"model: expected a language model of transformers, given {type(outer).__name__}")
    return model


def _adapters(model: Any) -> list[Any]:
    adapters = getattr(model, "peft_config", {}) if hasattr(model, "get_base_model") else {}
    return list(adapters.values())


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of its class's forward; an instance's may be patched."""
    return inspect.signature(type(model).forward).parameters


def _first_position(inner: nn.Module) -> int:
    """Return the position of the first token: RoBERTa's positions up to that of padding are unused."""
    for name, module in inner.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


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


def _is_padded_on_left(mask: Tensor) -> bool:
    # Both at once: one synchronization.
    right, padded = torch.stack(
        [(mask[:, 1:] < mask[:, :-1]).any() | (mask[:, -1] == 0).any(), (mask == 0).any()]
    ).tolist()
    if right:
        raise ValueError(
            "a prompt has padding on its right, where the answer should begin. Expected prompts of a "
            "decoder-only model to be padded on the left: set tokenizer.padding_side = 'left'."
        )
    return bool(padded)


def _pad_right(input_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding on the left of an encoder's inputs to their right.

    Encoders with learned positions count them from the first column.
    """
    columns = torch.arange(mask.shape[-1], device=mask.device)
    leading = (mask.cumsum(-1) == 0).sum(-1, keepdim=True)
    order = (columns + leading) % mask.shape[-1]
    return input_ids.gather(-1, order), mask.gather(-1, order)


def _check_logits(logits: Tensor) -> None:
    if bool((rows := logits.isnan().any(-1)).any()):
        raise ValueError(
            f"the model's logits are NaN for prompts {rows.nonzero().squeeze(-1).tolist()}. "
            "Some attention layers are NaN for padding in a precision other than float32: try model.float(), "
            "or one prompt at a time."
        )


def _start_token(model: Any) -> int:
    for name in ("decoder_start_token_id", "bos_token_id"):
        for source in (getattr(model, "generation_config", None), model.config):
            if isinstance(start := getattr(source, name, None), int):
                return start
    raise ValueError(
        "the token that a decoder starts with is not known: set model.config.decoder_start_token_id"
    )
