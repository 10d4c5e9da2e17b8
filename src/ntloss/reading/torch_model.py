"""The next tokens of a model of transformers: the prompt is run once, and its cache serves all continuations.

All readings know a model as `Continuations`, which is also what a server answers with
(`ntloss.reading.served`). Most causal models keep all texts that continue a prompt in one cache (`Tree`). Of
other models, such as encoder-decoders, Mamba, and models with sliding windows, each text has a copy of the
prompt's cache (`Branch`). A token of a cache takes 2 * layers * key-value heads * head size numbers, 46 kB
for SmolLM2-135M in float32. No class of transformers is imported: a cache is copied tensor by tensor, which
works for attention and Mamba caches of transformers 4.57 and 5.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
_KINDS = ("image", "video", "audio")  # of what the placeholders among a prompt's tokens stand for
_SOUND = ("audio", "input_features", "input_values")
# Largest total variation between the next token's probabilities of a padded prompt and of the same without.
_SAME = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
# Types whose next tokens after a cache are others than those without, in transformers 5.23.
_WITH_OTHER_CACHES = ("fsmt", "minimax")
_HALF = (torch.bfloat16, torch.float16)
_HEAD_ROWS = 8192  # rows of a half-precision head that are converted to float32 at a time
# Equal texts are merged only if less than this share of them remains, because selecting rows copies caches.
_WORTH_SHARING = 0.9


class Continuations(Protocol):
    """Continuations of prompts, one a row, and the tokens that may follow each."""

    @property
    def device(self) -> torch.device:
        """Where the results are."""

    @property
    def counts(self) -> tuple[int, int]:
        """How often the model was called so far, and with how many rows."""

    def __len__(self) -> int: ...

    def next_tokens(self, token_ids: Tensor) -> Tensor:
        """Return the log-probabilities of these tokens after each row, `[rows, tokens]`, float64."""

    def likeliest(self, row: int) -> int | str | None:
        """Return the likeliest token after a row, or its text, as `next_tokens` found it; None if unknown."""

    def select(self, rows: Tensor | slice) -> Continuations:
        """Return some rows to be extended, in any order and number; a slice ends the use of this object."""

    def extend(self, tokens: Tensor, lengths: Tensor | None = None) -> Continuations:
        """Write `[rows, n]` tokens, or the first `lengths` of each row, which ends its use."""


class Source(Protocol):
    """What may follow a text: of a model of transformers, of a server, or of an engine in this process."""

    def continuations(
        self, inputs: Any, texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Continuations:
        """Return prompts to be continued with tokens of these ids and texts, after the tokens of a prefix."""


def as_source(model: Any, past: Any = None) -> Source:
    """Return a source as it is, and a model of transformers as one, with its cache of the prompts."""
    if not hasattr(model, "continuations"):
        return TorchModel(model, past)
    if past is not None:
        raise TypeError(
            f"past_key_values: expected none for {type(model).__name__}, which has a cache of its own"
        )
    return cast(Source, model)


class TorchModel:
    """A model of transformers, which is called with its cache.

    Args:
        model: an encoder-decoder or causal language model, in evaluation mode.
        past: a causal model's cache of the first tokens of the prompts. Default: none.
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
        self.past = past
        self.encoded: Any = None  # output of the encoder
        self.padded = False  # whether a prompt is, so that positions have to be given
        self.first_position = 0
        # The part that counts images on several axes, and knows how far they move the tokens after them.
        parts = [part for _, part in self.inner.named_modules()]
        self.counting: Any = next((part for part in parts if hasattr(part, "rope_deltas")), None)
        self.passes = self.rows = 0  # number of calls, and of rows in all of them

    @property
    def width(self) -> int | None:
        """The width of the model's logits; None if it is only known from them."""
        head = self.inner.get_output_embeddings()
        return None if getattr(head, "weight", None) is None else len(head.weight)

    def continuations(
        self, inputs: Mapping[str, Tensor], texts: Mapping[int, str], prefix_ids: Sequence[int] = ()
    ) -> Branch:
        """Run a batch of prompts, each with the tokens of a prefix after it; see `number_quantiles`."""
        tokens, mask = _check_inputs(inputs)
        prefix = tokens.new_tensor(list(prefix_ids)).expand(len(tokens), -1)
        further = self._further(inputs, len(prefix_ids))
        if self.inner.config.is_encoder_decoder:
            # Encoders with learned positions count them from the first column: padding belongs on the right.
            leading = (mask.cumsum(-1) == 0).sum(-1, keepdim=True)
            order = (torch.arange(mask.shape[-1], device=mask.device) + leading) % mask.shape[-1]
            tokens, mask = tokens.gather(-1, order), mask.gather(-1, order)
            self.encoded = self.inner.get_encoder()(input_ids=tokens, attention_mask=mask)
            start = tokens.new_full((len(tokens), 1), start_token(self.inner))
            tokens = torch.cat([start, prefix], dim=-1)
        else:
            # Both at once: one synchronization.
            on_right = (mask[:, 1:] < mask[:, :-1]).any() | (mask[:, -1] == 0).any()
            misplaced, padded = torch.stack([on_right, (mask == 0).any()]).tolist()
            if misplaced:
                raise ValueError(
                    "a prompt has padding on its right, where the answer should begin. Expected prompts of a "
                    "decoder-only model to be padded on the left: set tokenizer.padding_side = 'left'."
                )
            if padded:
                self._give_positions()
            tokens, mask = torch.cat([tokens, prefix], dim=-1), F.pad(mask, (0, len(prefix_ids)), value=1)
        past = None
        if self.past is not None:
            past = _copy_past(self.past, tokens, self.inner.config.is_encoder_decoder)
        logits, cache, moved = self._begin(tokens, mask, past, further)
        root = Branch(self, mask, cache, logits[:, -1], moved)
        if self.padded and "position_ids" not in self.accepted:
            _check_padding(root, tokens)
        if bool((rows := root.logits.isnan().any(-1)).any()):
            raise ValueError(
                f"the model's logits are NaN for prompts {rows.nonzero().squeeze(-1).tolist()}. "
                "Some attention layers are NaN for padding in a precision other than float32: try "
                "model.float(), or one prompt at a time."
            )
        return root

    def _further(self, inputs: Mapping[str, Any], written: int) -> dict[str, Any]:
        """Return what a processor made besides the tokens, such as images; `written` tokens follow these."""
        config, ids = self.inner.config, inputs["input_ids"]
        given = {name: value for name, value in inputs.items() if name not in _USED and value is not None}
        tokens = {kind: _placeholder(config, kind) for kind in _KINDS}
        if config.is_encoder_decoder or not any(token is not None for token in tokens.values()):
            given = {name: value for name, value in given.items() if name not in _IGNORED}
        taken = {*()} if config.is_encoder_decoder else {*self.accepted, *_IGNORED} - _NOT_OF_PROMPTS
        if refused := sorted({*given} - taken):
            raise TypeError(
                f"inputs: expected input_ids and attention_mask, and of a causal model with images what its "
                f"forward takes; {type(self.inner).__name__} cannot be read with {', '.join(refused)}"
            )
        for kind, token in tokens.items():
            if token is None or not bool((ids == token).any()):
                continue
            if not any(
                torch.is_floating_point(value) and _is_of(kind, name) for name, value in given.items()
            ):
                raise ValueError(
                    f"inputs: a prompt holds the token {token}, which stands for an {kind}, but there is no "
                    f"{kind}: pass all that the processor returned"
                )
        by_token = {name for name, value in given.items() if getattr(value, "shape", None) == ids.shape}
        return {
            name: F.pad(value, (0, written)) if name in by_token else value
            for name, value in given.items()
            if name in self.accepted
        }

    def _begin(
        self, tokens: Tensor, mask: Tensor, past: Any, further: dict[str, Any], keep: Tensor | None = None
    ) -> tuple[Tensor, Any, Tensor]:
        """Run prompts, or what follows `past` of them.

        Return the logits, see `__call__`, the cache, and how far images move the positions of what follows,
        `[rows, 1]`.
        """
        seen = 0 if past is None else past.get_seq_length()
        moved, places, has_grid = tokens.new_zeros(len(tokens), 1), None, False
        if self.counting is not None:
            has_grid = any("grid" in name for name in further)
            if not has_grid:
                self._give_positions()
            elif past is not None:  # the model itself counts only from the first token
                accepted = inspect.signature(self.counting.get_rope_index).parameters
                options = {name: value for name, value in further.items() if name in accepted}
                places, moved = self.counting.get_rope_index(tokens, attention_mask=mask, **options)
                places = places[..., seen:]
        if past is not None:
            known = {_placeholder(self.inner.config, kind) for kind in _KINDS}
            if not any(bool((tokens[:, seen:] == token).any()) for token in known if token is not None):
                further = {}  # the cache holds all images
            by_token = {name for name, v in further.items() if getattr(v, "shape", None) == tokens.shape}
            further = {name: v[:, seen:] if name in by_token else v for name, v in further.items()}
        if places is None and not has_grid:
            places = self.places(mask, tokens.shape[-1] - seen, moved)
        before = getattr(self.counting, "rope_deltas", None)
        logits, cache = self(tokens[:, seen:], mask, past, keep, places, further)
        if has_grid and past is None:
            moved = self.counting.rope_deltas.to(tokens.device)
            self._give_positions()
        if self.counting is not None:
            self.counting.rope_deltas = before
        return logits, cache, moved

    def places(self, mask: Tensor, count: int, moved: Tensor) -> Tensor | None:
        """Return the positions of the last tokens, `[rows, count]`; None if the model counts them itself."""
        if not self.padded or "position_ids" not in self.accepted or self.encoded is not None:
            return None
        return (mask.cumsum(-1) - 1).clamp(min=0)[:, -count:] + moved

    def prefixes(
        self, inputs: Mapping[str, Any], lengths: Sequence[int], rows: int
    ) -> Iterator[Branch | Tree]:
        """Run one prompt once, and yield its first `lengths` tokens as prompts, `rows` at a time.

        A cache of attention layers holds every prefix. Other caches, and those of models that take no
        positions but count the cache's tokens, are advanced from prefix to prefix, token by token, and one
        prefix is yielded at a time. A TypeError for an encoder-decoder.
        """
        if self.inner.config.is_encoder_decoder:
            raise TypeError(f"{type(self.inner).__name__}: expected a causal model, given an encoder-decoder")
        tokens, mask = _check_inputs(inputs)
        further = self._further(inputs, 0)
        logits, cache, moved = self._begin(tokens, mask, None, further, torch.tensor(lengths) - 1)
        self._give_positions()
        holds_all = _is_attention(cache) and _holds_all(cache, tokens.shape[-1])
        if not holds_all or "position_ids" not in self.accepted:
            yield from self._steps(tokens, mask, further, lengths)
            return
        seen = torch.arange(tokens.shape[-1], device=tokens.device)
        for first in range(0, len(lengths), rows):
            kept = torch.tensor(lengths[first : first + rows], device=tokens.device)
            sees, root = seen < kept[:, None], torch.zeros_like(kept)
            if self.grows_trees(cache):
                copy = _select(cache, root[:1], 1)
                yield Tree(self, copy, root, sees, logits[0, first : first + rows], moved[root])
            else:
                of_rows = _select(cache, root, 1)
                yield Branch(self, sees.long(), of_rows, logits[0, first : first + rows], moved[root])

    def _steps(
        self, tokens: Tensor, mask: Tensor, further: dict[str, Any], lengths: Sequence[int]
    ) -> Iterator[Branch | Tree]:
        at = lengths[0]
        by_token = {name for name, v in further.items() if getattr(v, "shape", None) == tokens.shape}
        further = {name: v[:, :at] if name in by_token else v for name, v in further.items()}
        logits, cache, moved = self._begin(tokens[:, :at], mask[:, :at], None, further)
        branch = Branch(self, mask[:, :at], cache, logits[:, -1], moved)
        for length in lengths:
            for at in range(branch.mask.shape[-1], length):
                branch = branch.extend(tokens[:, at : at + 1])
            first = torch.zeros(1, dtype=torch.int64, device=tokens.device)
            yield replace(branch, mask=branch.mask.clone(), cache=_select(branch.cache, first, 1))

    def grows_trees(self, cache: Any) -> bool:
        """Return whether texts can share a cache: the model takes a mask for each token, and positions."""
        return (
            not self.inner.config.is_encoder_decoder
            and "position_ids" in self.accepted
            and getattr(self.inner, "_supports_attention_backend", False)
            and self.inner.config._attn_implementation in ("eager", "sdpa")
            # Other layers forget tokens, or round them.
            and all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        )

    def _give_positions(self) -> None:
        """Let positions be counted without what the mask leaves out."""
        self.padded = True
        # RoBERTa leaves the positions up to that of padding unused.
        embeddings = [module for name, module in self.inner.named_modules() if "position" in name]
        paddings = [m.padding_idx for m in embeddings if isinstance(m, nn.Embedding)]
        self.first_position = next((i + 1 for i in paddings if i is not None), 0)

    def __call__(
        self,
        tokens: Tensor,
        mask: Tensor,
        cache: Any,
        keep: Tensor | None = None,
        places: Tensor | None = None,
        further: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Any]:
        """Write `[rows, n]` tokens after those in the cache; a TypeError if the model returns none.

        Return the logits, `[rows, 1 or n, vocab]`, or those at the columns `keep`, and the cache. See
        `Branch` and `Tree` for the mask; `places` are the tokens' positions, and `further` are images.
        """
        options: dict[str, Any] = {self.cache_name: cache, "attention_mask": mask, **(further or {})}
        if self.encoded is not None:
            options |= {"decoder_input_ids": tokens, "encoder_outputs": self.encoded}
            if cache is not None:
                if not hasattr(cache, "cross_attention_cache"):
                    raise TypeError(
                        f"{type(self.inner).__name__} returned a {type(cache).__name__}: expected an "
                        "EncoderDecoderCache, with the keys of the encoder's output"
                    )
                # The cache has the encoder's output already: a view of the right shape, without copies.
                states = self.encoded[0][:1].expand(len(tokens), -1, -1)
                own = type(self.encoded)
                options["encoder_outputs"] = (states,) if own is tuple else own(last_hidden_state=states)
        else:
            options["input_ids"] = tokens
            if places is not None:
                options["position_ids"] = places + self.first_position
            if cache is None and "logits_to_keep" in self.accepted:
                options["logits_to_keep"] = 1 if keep is None else keep.to(tokens.device)
            if cache is not None and _is_recurrent(cache):  # its states hold what the mask has let in
                del options["attention_mask"]
                if "cache_position" in self.accepted:  # transformers 4 needs the position after the cache
                    seen = max(mask.shape[-1], self.inner.config.conv_kernel)
                    options["cache_position"] = torch.tensor([seen], device=tokens.device)
        head = self.inner.get_output_embeddings()
        # Adapters and quantized heads do more than multiply.
        is_half = type(head) is nn.Linear and (
            head.weight.dtype in _HALF or torch.is_autocast_enabled(head.weight.device.type)
        )
        with _float32_logits(head) if is_half else nullcontext():
            output = self.model(**options, use_cache=True)
        self.passes += 1
        self.rows += len(tokens)
        if (cache := getattr(output, self.cache_name, None)) is None:
            raise TypeError(
                f"the model returned no cache. Expected a model of transformers that returns "
                f"{self.cache_name} when it is called with use_cache=True."
            )
        logits = getattr(output, "logits", None)
        if logits is None or logits.dim() != 3:
            raise TypeError(
                f"model: expected a language model with a head, such as AutoModelForCausalLM loads, given "
                f"{type(self.inner).__name__}"
            )
        return logits if keep is None or "logits_to_keep" in options else logits[:, keep], cache


@dataclass
class Branch:
    """Continuations whose tokens are in a cache; see `Continuations`."""

    model: TorchModel
    mask: Tensor  # `[rows, seen]`, attention mask of the encoder's inputs, or of all tokens so far
    cache: Any
    logits: Tensor  # `[rows, vocab]`, of the token after each row
    moved: Tensor  # `[rows, 1]`, how far images move the positions of what follows

    @property
    def device(self) -> torch.device:
        """The logits' device."""
        return self.logits.device

    @property
    def counts(self) -> tuple[int, int]:
        """How often the model was called so far, and with how many rows."""
        return self.model.passes, self.model.rows

    def __len__(self) -> int:
        return len(self.logits)

    def next_tokens(self, token_ids: Tensor) -> Tensor:
        """Return the log-probabilities of these tokens; -inf for all of a row that rules out every token."""
        total = self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)).logsumexp(-1)
        log_probs = self.logits[:, token_ids].double() - total.double()[:, None]
        return torch.where(log_probs.isnan(), -math.inf, log_probs)

    def likeliest(self, row: int) -> int:
        """Return the likeliest token after a row."""
        return int(self.logits[row].argmax())

    def tree(self, rows: Tensor) -> Tree | None:
        """Return some rows as texts, with one copy of each prompt's cache, if the model allows it."""
        if not self.model.grows_trees(self.cache):
            return None
        self.model._give_positions()
        prompts, index = torch.unique(rows, return_inverse=True)
        cache = _select(self.cache, prompts, len(self))
        return Tree(self.model, cache, index, self.mask[rows].bool(), self.logits[rows], self.moved[rows])

    def select(self, rows: Tensor | slice) -> Branch | Tree:
        """Return some rows, with a copy of their caches; a slice shares this one's and ends its use."""
        if isinstance(rows, Tensor) and (tree := self.tree(rows)) is not None:
            return tree
        mask, cache, moved = (_select(of, rows, len(self)) for of in (self.mask, self.cache, self.moved))
        return replace(self, mask=mask, cache=cache, moved=moved)

    def extend(self, tokens: Tensor, lengths: Tensor | None = None) -> Branch:
        """Write `[rows, n]` tokens, or the first `lengths` of each row; do not use this branch afterwards.

        With `lengths`, the result cannot be extended: the cache of a shorter row holds its padding.
        """
        if lengths is not None and tokens.shape[-1] > 1 and not _is_attention(self.cache):
            # A recurrent model starts a longer input from an empty state: only single tokens can follow.
            longer = self.extend(tokens[:, :1])
            for i in range(1, tokens.shape[-1]):
                before, longer = longer.logits, longer.extend(tokens[:, i : i + 1])
                longer.logits = torch.where((lengths > i)[:, None], longer.logits, before)
            return longer
        mask = self.mask
        if self.model.encoded is None:
            mask = torch.cat([mask, torch.ones_like(tokens, dtype=mask.dtype)], dim=-1)
        places = self.model.places(mask, tokens.shape[-1], self.moved)
        logits, cache = self.model(tokens, mask, self.cache, places=places)
        rows = torch.arange(len(tokens), device=logits.device)
        last = logits[rows, -1 if lengths is None else lengths - 1]
        return Branch(self.model, mask, cache, last, self.moved)


@dataclass
class Tree:
    """Texts that continue prompts, with one cache for each prompt; see `Continuations`.

    A pass holds the next tokens of all texts of a prompt side by side. A mask says which of the tokens before
    it belong to the text of each.
    """

    model: TorchModel
    cache: Any  # `[prompts]`, all tokens that were written so far; shared with other trees
    prompts: Tensor  # `[texts]`, the row of the cache that each belongs to
    sees: Tensor  # `[texts, seen]`, bool, the tokens of that row that each consists of
    logits: Tensor  # `[texts, vocab]`, of the token after each text; of the last pass, for selected texts
    moved: Tensor  # `[texts, 1]`, how far images move the positions of what follows

    device, counts, next_tokens, likeliest = (
        Branch.device,
        Branch.counts,
        Branch.next_tokens,
        Branch.likeliest,
    )

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, rows: Tensor | slice) -> Tree:
        """Return some texts, in any order and number."""
        return replace(self, prompts=self.prompts[rows], sees=self.sees[rows], moved=self.moved[rows])

    def join(self, other: Tree) -> Tree:
        """Return the texts of both, which share their cache, to be extended."""
        longest = max(self.sees.shape[-1], other.sees.shape[-1])
        sees = [F.pad(each.sees, (0, longest - each.sees.shape[-1])) for each in (self, other)]
        prompts, moved = (
            torch.cat([getattr(of, name) for of in (self, other)]) for name in ("prompts", "moved")
        )
        return replace(self, prompts=prompts, sees=torch.cat(sees), moved=moved)

    def extend(self, tokens: Tensor, lengths: Tensor | None = None) -> Tree:
        """Write `[texts, n]` tokens, or the first `lengths` of each text."""
        (texts, length), seen = tokens.shape, self.cache.get_seq_length()
        order = self.prompts.argsort(stable=True)
        sizes = self.prompts.bincount(minlength=len(self.cache.layers[0].keys))
        # Each text's place among those of its prompt, and the columns of its tokens.
        place = torch.empty_like(order)
        place[order] = (
            torch.arange(texts, device=order.device) - (sizes.cumsum(0) - sizes)[self.prompts[order]]
        )
        columns = place[:, None] * length + torch.arange(length, device=order.device)
        width = int(sizes.max()) * length
        at = self.prompts[:, None], columns
        written = tokens.new_zeros(len(sizes), width).index_put(at, tokens)
        places = self.sees.sum(-1, keepdim=True) + torch.arange(length, device=order.device) + self.moved
        places = torch.zeros_like(written).index_put(at, places)
        # Where a prompt has fewer texts than others, tokens that no text holds see all.
        mask = self.sees.new_ones(len(sizes), width, seen + width)
        sees = F.pad(self.sees, (0, seen + width - self.sees.shape[-1]))
        for i, column in enumerate(columns.unbind(-1)):
            sees = sees.scatter(-1, seen + column[:, None], 1 if lengths is None else (lengths > i)[:, None])
            mask[self.prompts, column] = sees
        dtype = self.model.inner.dtype
        additive = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        logits, cache = self.model(written, additive[:, None], self.cache, places=places)
        self.model.rows += texts - len(sizes)
        last = columns[:, -1] if lengths is None else columns.gather(-1, lengths[:, None] - 1).squeeze(-1)
        return Tree(self.model, cache, self.prompts, sees, logits[self.prompts, last], self.moved)


def advance(
    branch: Continuations, root: Continuations, parents: Tensor, tokens: Tensor
) -> tuple[Continuations, Tensor]:
    """Extend texts by one token each; equal ones share a row if that saves many.

    Text i continues row `parents[i]` of `branch`, the last pass, which must not be used afterwards unless it
    is `root`. Return the next pass, and the row of each text.
    """
    width = int(tokens.max()) + 1
    keys, nodes = share(parents * width + tokens)
    parents, tokens = keys // width, keys % width
    if branch is root or not torch.equal(parents, torch.arange(len(parents), device=parents.device)):
        branch = branch.select(parents)
    elif len(parents) < len(branch):
        branch = branch.select(slice(len(parents)))
    return branch.extend(tokens[:, None]), nodes


def share(texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct texts and each one's index among them; all texts if few are equal."""
    dim = None if texts.dim() == 1 else 0
    distinct, index = torch.unique(texts, dim=dim, return_inverse=True)
    if len(distinct) < _WORTH_SHARING * len(texts):
        return distinct, index
    return texts, torch.arange(len(texts), device=texts.device)


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
    outer = model
    while hasattr(model, "children"):
        children = list(model.children())
        if hasattr(model, "get_base_model"):
            if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
                raise TypeError(
                    f"{type(model).__name__} puts learned prompts in front of the tokens: expected a model "
                    "with the tokens' embeddings alone, such as one with LoRA"
                )
            model = model.get_base_model()
        # The class's forward, because an instance's may be patched.
        elif len(children) == 1 and "input_ids" not in inspect.signature(type(model).forward).parameters:
            model = children[0]
        else:
            break
    if not hasattr(model, "config"):
        raise TypeError(f"model: expected a language model of transformers, given {type(outer).__name__}")
    return model


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


def _is_recurrent(cache: Any) -> bool:
    """Whether no layer is an attention layer, whose keys a mask refers to."""
    if isinstance(layers := getattr(cache, "layers", None), Sequence):
        return not any(hasattr(layer, "keys") for layer in layers)
    return not hasattr(cache, "key_cache")  # of a hybrid in transformers 4


def _holds_all(cache: Any, length: int) -> bool:
    """Whether no layer has forgotten a token: sliding windows may have."""
    windows = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    return all(window is None or length < window for window in windows)


def _placeholder(config: Any, kind: str) -> int | None:
    """Return the token that stands for a part of an image, a video or a sound."""
    return next(
        (
            token
            for name in (f"{kind}_token_id", f"{kind}_token_index")
            if isinstance(token := getattr(config, name, None), int)
        ),
        None,
    )


def _is_of(kind: str, name: str) -> bool:
    """Whether an input of a processor holds images, videos or sounds."""
    if kind == "audio":
        return any(word in name for word in _SOUND)
    return ("video" in name) == (kind == "video") and ("pixel" in name or kind in name)


def _check_inputs(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), Tensor):
        raise TypeError(
            "inputs: expected what a tokenizer returns with return_tensors='pt', a mapping with the tensor "
            f"'input_ids'; given {type(inputs).__name__}"
        )
    input_ids = inputs["input_ids"]
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(
            f"inputs: input_ids of shape {list(input_ids.shape)}: expected [batch, seq], both above 0"
        )
    mask = inputs.get("attention_mask")
    return input_ids, torch.ones_like(input_ids) if mask is None else mask


def _copy_past(past: Any, tokens: Tensor, is_encoder_decoder: bool) -> Any:
    """Check a cache of the first tokens of prompts; return a copy, to which more tokens can be appended."""
    if is_encoder_decoder or not _is_attention(past):
        raise TypeError(
            f"past_key_values: expected the cache of a causal model with attention layers, given a "
            f"{type(past).__name__}: omit it"
        )
    shape = [len(past.layers[0].keys), past.get_seq_length()]
    if shape[0] != len(tokens) or not 0 < shape[1] < tokens.shape[-1]:
        raise ValueError(
            f"past_key_values holds {shape[1]} tokens of {shape[0]} prompts: expected {len(tokens)} prompts, "
            f"and 1 to {tokens.shape[-1] - 1} of their tokens"
        )
    return _select(past, torch.arange(len(tokens)), len(tokens))


def _check_padding(root: Branch, tokens: Tensor) -> None:
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


def start_token(model: Any) -> int:
    """Return the token that a decoder starts with; a ValueError if none is known."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        for source in (getattr(model, "generation_config", None), model.config):
            if isinstance(start := getattr(source, name, None), int):
                return start
    raise ValueError(
        "the token that a decoder starts with is not known: set model.config.decoder_start_token_id"
    )
