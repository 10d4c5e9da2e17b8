"""The next tokens of a model of transformers: the prompt is run once, and its cache serves all continuations.

Most causal models keep all texts that continue a prompt in one cache, where a mask says which tokens belong
to each. Of other models, such as encoder-decoders, Mamba, and models with sliding windows, each text has a
copy of the prompt's cache. A token of a cache takes 2 * layers * key-value heads * head size numbers, 46 kB
for SmolLM2-135M in float32. No class of transformers is imported: a cache is copied tensor by tensor, which
works for attention and Mamba caches of transformers 4.57 and 5.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.reading.source import Source, Text

_USED = ("input_ids", "attention_mask")
# What a forward calls its cache, since transformers 5.24, and before for attention and for recurrent models.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
# What a forward takes, but no prompt has: a reading sets it, or further tokens would have to continue it.
_NOT_OF_PROMPTS = {
    "cross_attention_mask",
    *("labels", "inputs_embeds", "past_key_values", "cache_params", "cache", "cache_position"),
    *("use_cache", "return_dict", "logits_to_keep", "output_attentions", "output_hidden_states"),
}
_IGNORED = ("token_type_ids",)  # some tokenizers return them for models that do not use them
_PLACEHOLDERS = [f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index")]
# Largest total variation between the next token's probabilities of a padded prompt and of the same without.
_SAME = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
# Types whose next tokens after a cache are others than those without, in transformers 5.23.
_WITH_OTHER_CACHES = ("fsmt", "minimax")
_HALF = (torch.bfloat16, torch.float16)
_HEAD_ROWS = 8192  # rows of a half-precision head that are converted to float32 at a time


class TorchModel(Source):
    """A model of transformers in evaluation mode, which is called with its cache.

    `past` is a causal model's cache of the first tokens of the prompts.
    """

    def __init__(self, model: Any, past: Any = None) -> None:
        self.inner = innermost(model)  # the model of transformers, without wrappers
        if model.training:
            raise ValueError(
                "the model is in training mode, where dropout changes its answers: call model.eval()"
            )
        if getattr(self.inner.config, "model_type", None) in _WITH_OTHER_CACHES:
            raise TypeError(
                f"{type(self.inner).__name__}: expected a model that writes after its cache what it writes "
                "without, which this one does not"
            )
        # Replicas on several devices would have to merge their caches.
        self.model = model.module if isinstance(model, nn.DataParallel) else model
        self.accepted = inspect.signature(type(self.inner).forward).parameters
        self.cache_name = next((name for name in _CACHE_NAMES if name in self.accepted), "past_key_values")
        self.takes_positions = "position_ids" in self.accepted
        self.past = past
        self.has_decoder = bool(self.inner.config.is_encoder_decoder)
        self.encoded: Any = None  # output of the encoder
        parts = [*self.inner.named_modules()]
        embeddings = [part for name, part in parts if "position" in name and isinstance(part, nn.Embedding)]
        # RoBERTa leaves the positions up to that of padding unused.
        paddings = [part.padding_idx for part in embeddings if part.padding_idx is not None]
        self.first_position = paddings[0] + 1 if paddings else 0
        # The part that counts images on several axes, and knows how far they move the tokens after them.
        self.counting: Any = next((part for _, part in parts if hasattr(part, "rope_deltas")), None)
        # The tokens that stand for a part of an image, a video or a sound.
        given = (getattr(self.inner.config, name, None) for name in _PLACEHOLDERS)
        self.placeholders = [token for token in given if isinstance(token, int)]
        self.head = self.inner.get_output_embeddings()
        weight = getattr(self.head, "weight", None)
        self.width = None if weight is None else len(weight)  # of the logits; None if only these tell it
        self.counts = [0, 0]  # calls, and rows in all of them

    def continuations(
        self, inputs: Mapping[str, Tensor], texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Prompts:
        """Run a batch of prompts, each with the tokens of a prefix after it; see `number_quantiles`."""
        tokens, root = self._run(inputs, prefix_ids)
        if not self.has_decoder and not self.takes_positions and bool((root.mask == 0).any()):
            _check_padding(root, tokens)
        if bool((rows := root.logits.isnan().any(-1)).any()):
            raise ValueError(
                f"the model's logits are NaN for prompts {rows.nonzero().squeeze(-1).tolist()}. "
                "Some attention layers are NaN for padding in a precision other than float32: try "
                "model.float(), or one prompt at a time."
            )
        return root

    def prefixes(self, inputs: Mapping[str, Any], lengths: Sequence[int], rows: int) -> Iterator[Prompts]:
        """Run one prompt, and yield its first `lengths` tokens as prompts, `rows` at a time.

        A cache of attention layers holds every prefix. With other caches, and for models that take no
        positions but count the cache's tokens, each prefix is run by itself.
        """
        if self.takes_positions:
            tokens, whole = self._run(inputs, keep=torch.tensor(lengths) - 1)
            if _holds_all(whole.cache, tokens.shape[-1]):
                seen = torch.arange(tokens.shape[-1], device=tokens.device)
                for first in range(0, len(lengths), rows):
                    kept = torch.tensor(lengths[first : first + rows], device=seen.device)
                    same, sees = torch.zeros_like(kept), (seen < kept[:, None]).long()
                    logits = whole.logits[first : first + rows]
                    yield Prompts(self, sees, whole.cache, logits, whole.moved[same], same.tolist())
                return
        for length in lengths:
            begun = {
                name: value[:, :length] if _is_by_token(value, inputs["input_ids"]) else value
                for name, value in inputs.items()
            }
            yield self.continuations(begun, {})

    def _run(
        self, inputs: Mapping[str, Any], prefix_ids: Sequence[int] = (), keep: Tensor | None = None
    ) -> tuple[Tensor, Prompts]:
        """Run prompts, each with the tokens of a prefix after it; return their tokens, `[rows, n]`, too.

        Of a single prompt, `keep` chooses the tokens after which logits are kept. Default: the last one.
        """
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
        if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
            raise TypeError(
                "inputs: expected what a tokenizer returns with return_tensors='pt', a mapping with the "
                "tensor 'input_ids', [batch, seq], both above 0; given "
                f"{list(ids.shape) if isinstance(ids, Tensor) else type(inputs).__name__}"
            )
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        further = self._further(inputs, ids)
        prefix = ids.new_tensor(list(prefix_ids)).expand(len(ids), -1)
        if self.has_decoder:
            # Encoders with learned positions count them from the first column: padding belongs on the right.
            leading = (mask.cumsum(-1) == 0).sum(-1, keepdim=True)
            order = (torch.arange(mask.shape[-1], device=mask.device) + leading) % mask.shape[-1]
            ids, mask = ids.gather(-1, order), mask.gather(-1, order)
            self.encoded = self.inner.get_encoder()(input_ids=ids, attention_mask=mask)
            start = ids.new_full((len(ids), 1), _start_token(self.inner))
            tokens = torch.cat([start, prefix], dim=-1)
        else:
            if bool((mask[:, 1:] < mask[:, :-1]).any() | (mask[:, -1] == 0).any()):
                raise ValueError(
                    "a prompt has padding on its right, where the answer should begin. Expected prompts of a "
                    "decoder-only model to be padded on the left: set tokenizer.padding_side = 'left'."
                )
            tokens, mask = torch.cat([ids, prefix], dim=-1), F.pad(mask, (0, len(prefix_ids)), value=1)
            further = {
                name: F.pad(value, (0, len(prefix_ids))) if _is_by_token(value, ids) else value
                for name, value in further.items()
            }
        past, seen = self.past, 0
        if past is not None:
            if self.has_decoder or further or not _is_attention(past):
                raise TypeError(
                    "past_key_values: expected the cache of a causal model with attention layers, and no "
                    f"images; given a {type(past).__name__}: omit it"
                )
            seen = past.get_seq_length()
            if len(past.layers[0].keys) != len(tokens) or not 0 < seen < tokens.shape[-1]:
                raise ValueError(
                    f"past_key_values holds {seen} tokens of {len(past.layers[0].keys)} prompts: expected "
                    f"{len(tokens)} prompts, and 1 to {tokens.shape[-1] - 1} of their tokens"
                )
            past = _select(past, torch.arange(len(tokens)), len(tokens))
        moved = tokens.new_zeros(len(tokens), 1)
        has_grid = self.counting is not None and any("grid" in name for name in further)
        before = getattr(self.counting, "rope_deltas", None)
        logits, cache = self(
            tokens[:, seen:], mask, past, None if has_grid else moved, keep=keep, further=further
        )
        if has_grid:
            moved = self.counting.rope_deltas.to(tokens.device)
        if self.counting is not None:
            self.counting.rope_deltas = before
        return tokens, Prompts(self, mask, cache, logits[:, -1] if keep is None else logits[0], moved)

    def _further(self, inputs: Mapping[str, Any], ids: Tensor) -> dict[str, Any]:
        """Return what a processor made besides tokens, such as images; a TypeError if it is not taken."""
        left_out = _USED if self.placeholders and not self.has_decoder else (*_USED, *_IGNORED)
        given = {name: value for name, value in inputs.items() if name not in left_out and value is not None}
        taken = {*()} if self.has_decoder else {*self.accepted, *_IGNORED} - _NOT_OF_PROMPTS
        if refused := sorted({*given} - taken):
            raise TypeError(
                f"inputs: expected input_ids and attention_mask, and of a causal model with images what its "
                f"forward takes; {type(self.inner).__name__} cannot be read with {', '.join(refused)}"
            )
        seen = any(isinstance(each, Tensor) and each.is_floating_point() for each in given.values())
        for token in self.placeholders:
            if not seen and bool((ids == token).any()):
                raise ValueError(
                    f"inputs: a prompt holds the token {token}, which stands for a part of an image, a video "
                    "or a sound, but there is none: pass all that the processor returned"
                )
        return {name: value for name, value in given.items() if name in self.accepted}

    def __call__(
        self,
        tokens: Tensor,
        mask: Tensor,
        cache: Any,
        moved: Tensor | None = None,
        places: Tensor | None = None,
        keep: Tensor | None = None,
        further: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """Write `[rows, n]` tokens after those in the cache; a TypeError if the model returns none.

        Return the logits, `[rows, 1 or n, vocab]`, or those at the columns `keep`, and the cache. See
        `Prompts` for the mask. The tokens' positions are `places`, or are counted in the mask and moved by
        `moved`; without both, the model counts them itself. `further` are images.
        """
        options: dict[str, Any] = {self.cache_name: cache, "attention_mask": mask, **(further or {})}
        if self.encoded is not None:
            options |= {"decoder_input_ids": tokens, "encoder_outputs": self.encoded}
            if cache is not None:
                # The cache has the encoder's output already: a view of the right shape, without copies.
                states = self.encoded[0][:1].expand(len(tokens), -1, -1)
                own = type(self.encoded)
                options["encoder_outputs"] = (states,) if own is tuple else own(last_hidden_state=states)
        else:
            options["input_ids"] = tokens
            if moved is not None:
                places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[-1] :] + moved
            if places is not None and self.takes_positions:
                options["position_ids"] = places + self.first_position
            if cache is None and "logits_to_keep" in self.accepted:
                options["logits_to_keep"] = 1 if keep is None else keep.to(tokens.device)
            layers = getattr(cache, "layers", None)
            has_keys = hasattr(cache, "key_cache")  # of a hybrid in transformers 4
            if isinstance(layers, Sequence):
                has_keys = any(hasattr(layer, "keys") for layer in layers)
            if cache is not None and not has_keys:  # recurrent: its states hold what the mask has let in
                del options["attention_mask"]
                if "cache_position" in self.accepted:  # transformers 4 needs the position after the cache
                    seen = max(mask.shape[-1], self.inner.config.conv_kernel)
                    options["cache_position"] = torch.tensor([seen], device=tokens.device)
        head = self.head
        # Adapters and quantized heads do more than multiply.
        is_half = type(head) is nn.Linear and (
            head.weight.dtype in _HALF or torch.is_autocast_enabled(head.weight.device.type)
        )
        with _float32_logits(head) if is_half else nullcontext():
            output = self.model(**options, use_cache=True)
        self.counts[0] += 1
        self.counts[1] += len(tokens)
        cache, logits = getattr(output, self.cache_name, None), getattr(output, "logits", None)
        if cache is None or logits is None or logits.dim() != 3:
            raise TypeError(
                f"{type(self.inner).__name__} returned no {self.cache_name}, or no logits of each token: "
                "expected a language model with a head and a cache, such as AutoModelForCausalLM loads"
            )
        return logits if keep is None or "logits_to_keep" in options else logits[:, keep], cache


class Prompts:
    """Prompts that a model has run, and the texts that continue them; see `Continuations`.

    Args:
        model: the model.
        mask: `[rows, seen]`, attention mask of the encoder's inputs, or of the tokens of each prompt.
        cache: the prompts' keys and values.
        logits: `[rows, vocab]`, of the token after each prompt.
        moved: `[rows, 1]`, how far images move the positions of what follows.
        owners: the row of the cache that each prompt is in. Default: its own.

    In a tree, texts share a cache. The model has to take a mask for each token, and positions.
    """

    def __init__(
        self,
        model: TorchModel,
        mask: Tensor,
        cache: Any,
        logits: Tensor,
        moved: Tensor,
        owners: Sequence[int] | None = None,
    ) -> None:
        self.model, self.mask, self.cache, self.logits, self.moved = model, mask, cache, logits, moved
        self.device, self.counts = logits.device, model.counts
        self._owners = [*range(len(logits))] if owners is None else owners
        self.in_tree = (
            not model.has_decoder
            and model.takes_positions
            and getattr(model.inner, "_supports_attention_backend", False)
            and model.inner.config._attn_implementation in ("eager", "sdpa")
            # Other layers forget tokens, or round them.
            and all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        )
        if owners is not None and not self.in_tree:
            self.cache = _select(cache, torch.tensor(owners), len(cache.layers[0].keys))
        # In a tree, the cache with the texts' tokens, and each text's columns in it; otherwise the texts of
        # the last pass, each with its row in the cache and the mask of that pass.
        self._grown: Any = None
        self._places = dict[Text, Any]()

    def __len__(self) -> int:
        return len(self.logits)

    def select(self, rows: Tensor) -> Prompts:
        """Return some of the prompts."""
        within = None
        if self.in_tree:  # which leaves the prompts' cache as it is
            owners = [self._owners[row] for row in rows.tolist()]
            held, count = sorted({*owners}), len(self.cache.layers[0].keys)
            within = [held.index(owner) for owner in owners]
            cache = _select(self.cache, rows.new_tensor(held), count) if len(held) < count else self.cache
        else:
            cache = _select(self.cache, rows, len(self))
        return Prompts(self.model, self.mask[rows], cache, self.logits[rows], self.moved[rows], within)

    def likeliest(self, row: int) -> int:
        """Return the likeliest token after a prompt."""
        return int(self.logits[row].argmax())

    def next_tokens(self, texts: Sequence[Text], token_ids: Tensor) -> Tensor:
        """Return the log-probabilities of these tokens; -inf for all of a text that rules out every token."""
        distinct = dict.fromkeys(texts)
        written = [text for text in distinct if text[1]]
        begun = [row for row, tokens in distinct if not tokens]
        parts = [self.logits[begun]] if begun else []
        parts += [self._in_tree(written) if self.in_tree else self._in_copies(written)] if written else []
        order = {text: i for i, text in enumerate([*((row, ()) for row in begun), *written])}
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        total = logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)
        log_probs = logits[:, token_ids].double() - total.double()[:, None]
        return torch.where(log_probs.isnan(), -math.inf, log_probs)[[order[text] for text in texts]]

    def _in_tree(self, texts: Sequence[Text]) -> Tensor:
        """Write the last tokens of texts side by side; return their logits, `[texts, vocab]`."""
        if self._grown is None:
            self._grown = _select(self.cache, slice(None), len(self.cache.layers[0].keys))
        seen, count = self._grown.get_seq_length(), len(self._grown.layers[0].keys)
        filled, places, columns = [0] * count, list[int](), list[tuple[int, ...]]()
        for row, tokens in texts:
            places.append(filled[self._owners[row]])
            filled[self._owners[row]] += 1
            columns.append((*self._places.get((row, tokens[:-1]), ()), seen + places[-1]))
        self._places.update(zip(texts, columns, strict=True))
        rows = torch.tensor([row for row, _ in texts], device=self.device)
        at = rows.new_tensor([self._owners[row] for row, _ in texts]), rows.new_tensor(places)
        width = max(filled)
        written = rows.new_zeros(count, width).index_put(at, rows.new_tensor([t[-1] for _, t in texts]))
        before = rows.new_tensor([len(tokens) - 1 for _, tokens in texts])
        positions = self.mask[rows].bool().sum(-1) + before + self.moved[rows, 0]
        sees = F.pad(self.mask[rows].bool(), (0, seen + width - self.mask.shape[-1]))
        index = torch.arange(len(texts), device=self.device).repeat_interleave(before + 1)
        sees[index, rows.new_tensor([column for each in columns for column in each])] = True
        # Where a prompt has fewer texts than others, tokens that no text holds see all.
        mask = sees.new_ones(count, width, seen + width).index_put(at, sees)
        dtype = self.model.inner.dtype
        additive = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        positions = torch.zeros_like(written).index_put(at, positions)
        logits, self._grown = self.model(written, additive[:, None], self._grown, places=positions)
        self.counts[1] += len(texts) - count
        return logits[at]

    def _in_copies(self, texts: Sequence[Text]) -> Tensor:
        """Write texts, each after a copy of its cache; return their logits, `[texts, vocab]`.

        The last pass is continued if it holds all of them but their last tokens. Otherwise whole texts are
        written after the prompts.
        """
        rows: list[Any] = [self._places.get((row, tokens[:-1])) for row, tokens in texts]
        held, count, written = self._grown, len(self._places), [tokens[-1:] for _, tokens in texts]
        if None in rows:
            rows, held, count = [row for row, _ in texts], (self.mask, self.cache), len(self)
            written = [tokens for _, tokens in texts]
        mask, cache = _select(held, torch.tensor(rows, device=self.device), count)
        moved = self.moved[[row for row, _ in texts]]
        lengths = [len(tokens) for tokens in written]
        padded = [[*tokens, *[0] * (max(lengths) - len(tokens))] for tokens in written]
        columns, after = torch.tensor(padded, device=self.device), []
        # A recurrent model starts a longer input from an empty state: only single tokens can follow.
        for part in torch.split(columns, max(lengths) if _is_attention(cache) else 1, dim=-1):
            if self.model.encoded is None:
                mask = torch.cat([mask, torch.ones_like(part, dtype=mask.dtype)], dim=-1)
            logits, cache = self.model(part, mask, cache, moved)
            after.append(logits)
        # The cache of a shorter row holds its padding, so it cannot be continued.
        is_even = min(lengths) == max(lengths)
        self._places = {text: i for i, text in enumerate(texts)} if is_even else {}
        self._grown = (mask, cache) if is_even else None
        ends = torch.tensor(lengths, device=self.device) - 1
        return torch.cat(after, dim=1)[torch.arange(len(texts), device=self.device), ends]


@contextmanager
def _float32_logits(head: nn.Module) -> Iterator[None]:
    """Let a head of half precision return float32 logits; what the model does with them follows in float32.

    Logits of 20 are 0.125 apart in bfloat16, which moves quantiles more than the rounding of all layers.
    """

    def again(head: nn.Linear, args: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        # A compiled graph would keep the hook after its removal.
        if logits.dtype not in _HALF or torch.compiler.is_compiling() or args[0].device != head.weight.device:
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


def innermost(model: Any) -> Any:
    """Return the model of transformers inside PEFT, `torch.compile` and data parallelism."""
    inner = model
    while True:
        if hasattr(inner, "get_base_model"):
            if any(config.is_prompt_learning for config in getattr(inner, "peft_config", {}).values()):
                raise TypeError(
                    f"{type(inner).__name__} puts learned prompts in front of the tokens: expected a model "
                    "with the tokens' embeddings alone, such as one with LoRA"
                )
            inner = inner.get_base_model()
        elif hasattr(inner, "_orig_mod") or hasattr(inner, "module"):
            inner = getattr(inner, "_orig_mod", None) or inner.module
        else:
            break
    if not hasattr(inner, "config"):
        raise TypeError(f"model: expected a language model of transformers, given {type(model).__name__}")
    return inner


def _select(held: Any, rows: Tensor | slice, count: int) -> Any:
    """Copy a cache, with these of the `count` rows of each of its tensors."""
    if isinstance(held, Tensor):
        if held.dim() < 2 or len(held) != count:
            return held
        return held[rows] if isinstance(rows, slice) else held.index_select(0, rows.to(held.device))
    if isinstance(held, list | tuple):
        return type(held)(_select(item, rows, count) for item in held)
    if isinstance(held, dict):
        return {key: _select(item, rows, count) for key, item in held.items()}
    if type(held).__name__.endswith(("Cache", "Layer")):
        made = copy.copy(held)
        vars(made).update(_select(vars(held), rows, count))
        return made
    return held


def _is_attention(cache: Any) -> bool:
    """Whether several tokens can be appended in one call: all layers are attention layers."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return bool(layers) and all(
        hasattr(layer, "keys") and not hasattr(layer, "conv_states") for layer in layers
    )


def _holds_all(cache: Any, length: int) -> bool:
    """Whether all layers are attention layers that have forgotten no token: sliding windows may have."""
    windows = [getattr(layer, "sliding_window", None) for layer in getattr(cache, "layers", ())]
    return _is_attention(cache) and all(window is None or length < window for window in windows)


def _is_by_token(value: Any, tokens: Tensor) -> bool:
    """Whether an input has an entry for each token, as the mask has."""
    return getattr(value, "shape", None) == tokens.shape


def _check_padding(root: Prompts, tokens: Tensor) -> None:
    """Run the prompt with the most padding without it; raise a ValueError if that changes its logits."""
    padding = (root.mask == 0).sum(-1)
    row = int(padding.argmax())
    alone = tokens[row : row + 1, int(padding[row]) :]
    logits = root.model(alone, torch.ones_like(alone), None)[0][0, -1]
    difference = (logits.softmax(-1) - root.logits[row].softmax(-1)).abs().sum().item() / 2
    inner = root.model.inner
    if difference > _SAME[next(inner.parameters()).dtype]:
        raise ValueError(
            f"{type(inner).__name__} does not support padding on the left: without its padding, prompt {row} "
            f"has other next tokens (total variation {difference:.2g}). Pass prompts of one length at a time."
        )


def _start_token(model: Any) -> int:
    """Return the token that a decoder starts with; a ValueError if none is known."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        for source in (getattr(model, "generation_config", None), model.config):
            if isinstance(start := getattr(source, name, None), int):
                return start
    raise ValueError("the model's first token is not known: set model.config.decoder_start_token_id")
