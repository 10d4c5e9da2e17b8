"""How a transformers model computes its loss and its logits: its wrappers, use of labels, and head."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ntloss.engine.readout import Transform
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

# Largest logit of the probe that checks a head: large enough for a soft cap to have an effect.
_PROBE = 50.0
# Embeddings are padded for speed and for future tokens, by less than this.
_PADDING_SHARE, _PADDING_TOKENS = 1.1, 1024
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier")


def without_wrappers(model: Any) -> Any:
    """Return the model inside torch.compile, DistributedDataParallel, FSDP, DeepSpeed and PEFT wrappers."""
    # Only a wrapper's own attributes identify it: it forwards the model's, which may include `module`.
    while not isinstance(model, PreTrainedModel):
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            break
    return model


def calls_loss_function(model_class: type) -> bool:
    """Whether the forward of a class, or of a parent, calls `self.loss_function`."""
    return "loss_function" in _names_in_forward(model_class)


def check_inline_loss(model: Any) -> None:
    """Raise a ValueError if a model's inline loss is not cross-entropy of its logits."""
    names = _names_in_forward(type(model))
    known = ("CrossEntropyLoss", "cross_entropy", "loss_f")  # loss_function, loss_fct, mlm_loss_fct, loss_fn
    if not any(part in name for part in known for name in names):
        raise ValueError(
            f"{type(model).__name__}.forward computes no cross-entropy that could be made number-aware: "
            "expected a language model. Use NTLCrossEntropyLoss on its logits."
        )


def _names_in_forward(model_class: type) -> set[str]:
    forwards = (vars(parent)["forward"] for parent in model_class.__mro__ if "forward" in vars(parent))
    return {name for forward in forwards for name in inspect.unwrap(forward).__code__.co_names}


def without_labels(model: Any, names: tuple[str, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Replace the labels of a call by the decoder inputs that an inline model would derive from them.

    `names` are the parameters of its forward. Raise a ValueError if the call would add a router's loss, or
    the decoder inputs are unknown.
    """
    labels = kwargs["labels"]
    kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
    if "use_cache" in names:
        kwargs["use_cache"] = False
    has_inputs = any(kwargs.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds"))
    if model.config.is_encoder_decoder and not has_inputs:
        kwargs["decoder_input_ids"] = _decoder_inputs_of(model, labels)
    if kwargs.get("output_router_logits") or getattr(model.config, "output_router_logits", False):
        raise ValueError(
            f"{type(model).__name__} adds its routers' loss inline, which would be lost: omit "
            "output_router_logits, or use NTLCrossEntropyLoss on its logits and add that loss yourself"
        )
    return kwargs


def _decoder_inputs_of(model: Any, labels: Tensor) -> Any:
    for name in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, name):
            return getattr(model, name)(labels)
    for parent in type(model).__mro__:  # M2M100, Whisper, Blenderbot: a function of the module
        if shift := getattr(sys.modules.get(parent.__module__), "shift_tokens_right", None):
            return shift(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    raise ValueError(
        f"{type(model).__name__} has no prepare_decoder_input_ids_from_labels: expected 'decoder_input_ids' "
        "in the batch, besides the labels"
    )


def shifts_labels(model: Any) -> bool:
    """Whether a model's position i predicts label i + 1; a ValueError if its class does not tell."""
    if model.config.is_encoder_decoder or getattr(model, "loss_type", None) == "ForMaskedLM":
        return False
    if not calls_loss_function(type(model)):
        raise ValueError(
            f"{type(model).__name__} computes its loss inline and is not an encoder-decoder: whether it "
            "shifts labels is unknown. Pass shift=True if position i predicts label i + 1, else shift=False."
        )
    return True  # transformers, too, treats unknown loss types as those of causal models


class HeadTensors(NamedTuple):
    """The tensors of a head, whose logits are `hidden_states @ lm_head_weight.T + bias`."""

    hidden_states: Tensor  # `[..., hidden]`, with the low-rank activations of adapters appended
    lm_head_weight: Tensor  # `[vocab, hidden]`, with their second matrices appended
    bias: Tensor | None  # `[vocab]`


def find_head(model: Any) -> nn.Module:
    """Return the linear module that computes a model's logits, or raise a TypeError or ValueError."""
    if not hasattr(model, "get_output_embeddings"):
        raise TypeError(f"expected a transformers model, given {type(model).__name__}")
    head: nn.Module | None = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if head is None or not isinstance(weight, Tensor) or weight.dim() not in (1, 2):
        given = "none" if head is None else f"{type(head).__name__} without a weight [vocab, hidden]"
        raise ValueError(
            f"no head found: {type(model).__name__}.get_output_embeddings() returns {given}. Expected "
            "a language model with a linear head, such as one from AutoModelForCausalLM."
        )
    return head


def vocabulary_for(numbers: NumberVocabulary | Any, head: nn.Module) -> NumberVocabulary:
    """Return the number tokens for a head, or raise a ValueError if they belong to another model."""
    # Sharded by DeepSpeed, the weight itself is an empty tensor.
    weight: Any = head.weight
    rows = int(getattr(weight, "ds_shape", weight.shape)[0])
    again = f"NumberVocabulary.from_tokenizer(tokenizer, vocab_size={rows})"
    if isinstance(numbers, NumberVocabulary):
        if numbers.vocab_size != rows:
            raise ValueError(
                f"the vocabulary has {numbers.vocab_size:,} tokens, the model's head {rows:,} rows: does it "
                f"belong to another model? If the model's embeddings are padded: {again}."
            )
        return numbers
    if not hasattr(numbers, "get_vocab"):
        return as_vocabulary(numbers)  # whose error says what was expected
    ids = numbers.get_vocab().values()
    if max(ids) >= rows:
        raise ValueError(
            f"the tokenizer has token ids up to {max(ids):,}, the model's head {rows:,} rows: expected the "
            "model's own tokenizer. If tokens were added to it: model.resize_token_embeddings("
            "len(tokenizer))."
        )
    if rows > _PADDING_SHARE * len(ids) + _PADDING_TOKENS:
        raise ValueError(
            f"the tokenizer has {len(ids):,} tokens, the model's head {rows:,} rows, far more than padding: "
            f"expected the model's own tokenizer. If it is the right one: {again}."
        )
    return NumberVocabulary.from_tokenizer(numbers, vocab_size=rows)


def logit_transform(config: Any) -> dict[str, float]:
    """Return the transform of a model's logits, as options of `NTLLinearCrossEntropyLoss`."""
    config = config.get_text_config(decoder=True)
    caps = [cap for name in _SOFT_CAPS if (cap := getattr(config, name, None)) is not None]
    scales = [scale for name in _SCALES if isinstance(scale := getattr(config, name, None), int | float)]
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None and config.model_type != "minicpm3":  # which scales the hidden states instead
        # Granite models divide by it, HyperCLOVA X multiplies.
        scales.append(scaling if config.model_type.startswith("hyperclovax") else 1 / scaling)
    found = {"softcap": caps[-1:], "logit_scale": scales[:1]}
    return {name: float(*values) for name, values in found.items() if values}


def head_tensors(head: nn.Module, hidden: Tensor) -> HeadTensors:
    """Return the tensors of a linear layer or PEFT's wrapper of one, differentiable in the adapter's weights.

    LoRA's product is not formed: its low-rank activations are appended to the hidden states, and its second
    matrix to the weight. So the adapter's dropout and scaling apply unchanged. Raise a ValueError for another
    layer, or an adapter other than LoRA, `trainable_token_indices` and `modules_to_save`.
    """
    layer: Any = head
    if hasattr(layer, "token_adapter"):
        adapter = layer.token_adapter
        tensors = head_tensors(adapter.base_layer, hidden)
        if adapter.disable_adapters or adapter.merged or not adapter.active_adapters:
            return tensors
        # PEFT ignores a bias here.
        return HeadTensors(tensors.hidden_states, adapter.get_merged_weights(adapter.active_adapters), None)
    if hasattr(layer, "modules_to_save"):
        active = [name for name in layer.active_adapters if name in layer.modules_to_save]
        is_stock = layer.disable_adapters or not active
        return head_tensors(layer.original_module if is_stock else layer.modules_to_save[active[0]], hidden)
    if not hasattr(layer, "base_layer"):
        if not hasattr(layer, "bias"):  # an embedding, whose weight the model multiplies with
            raise ValueError(
                f"the head is not a linear layer but {type(layer).__name__}, which the model does not call "
                "to compute logits. Use chunked=False, which computes the logits."
            )
        # With a model spread over several devices, the head may be on another one.
        return HeadTensors(hidden.to(layer.weight.device), layer.weight, layer.bias)
    if layer.disable_adapters or layer.merged:
        return head_tensors(layer.base_layer, hidden)
    active = [name for name in layer.active_adapters if name in getattr(layer, "lora_A", {})]
    if not hasattr(layer, "lora_A") or any(name in layer.lora_variant for name in active):
        raise ValueError(
            f"the head is wrapped by an adapter ({type(layer).__module__}.{type(layer).__name__}) which "
            "has no separate low-rank weights: expected plain LoRA (no variant such as DoRA), "
            "modules_to_save or trainable_token_indices. Use chunked=False, which computes the logits."
        )
    states, weight, bias = head_tensors(layer.base_layer, hidden)
    for name in active:
        down, up, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
        low_rank = down(layer.lora_dropout[name](hidden.to(down.weight))) * scaling
        states = torch.cat([states, low_rank.to(states)], -1)
        weight = torch.cat([weight, up.weight.to(weight.dtype)], -1)
        if up.bias is not None:
            further = (up.bias * scaling).to(weight.dtype)
            bias = further if bias is None else bias + further
    return HeadTensors(states, weight, bias)


@contextmanager
def loss_in_head(
    model: Any, compute: Callable[[HeadTensors], None], probe: bool = False
) -> Iterator[list[Tensor]]:
    """Let a model's head compute a loss in place of the logits, at its first call.

    The head's weight is read in its forward, the only place where sharded weights are gathered. The model
    receives empty logits, so its later operations cost nothing; with `probe`, it receives those of a probe,
    which show how it transforms them, and which the context appends to its list, with the model's final bias.
    """
    head = find_head(model)  # an adapter may have wrapped it since the last call
    own_forward, replaced = head.forward, vars(head).get("forward")
    computed, probed = list[bool](), list[Tensor]()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if computed:
            return own_forward(hidden, *args, **kwargs)
        computed.append(True)
        tensors = head_tensors(head, hidden)
        final_bias = getattr(model, "final_logits_bias", None)  # of BART and similar models
        if final_bias is not None:
            final_bias = final_bias.reshape(-1).to(hidden)
            bias = final_bias if tensors.bias is None else tensors.bias + final_bias
            tensors = tensors._replace(bias=bias)
        compute(tensors)
        with torch.no_grad():
            if not probe:
                return own_forward(hidden[..., :0, :])
            # The first position of each row, scaled so that a soft cap has an effect.
            first = hidden[..., :1, :].detach()
            logits = own_forward(first).abs()
            largest = float(torch.where(logits.isfinite(), logits, 0).max())  # a bias of -inf disables tokens
            logits = own_forward(first * (_PROBE / largest) if largest > 0 else first)
            probed.append(logits if final_bias is None else logits + final_bias)
            return logits

    head.forward = forward
    try:
        yield probed
    finally:
        del head.forward
        if replaced is not None:
            head.forward = replaced


def check_transform(head_logits: Tensor, logits: Tensor, transform: Transform, model: str) -> None:
    """Raise a ValueError unless a model turns its head's logits `[..., vocab]` into others as expected."""
    expected = transform.apply(head_logits.float())
    if logits.shape != expected.shape:
        raise ValueError(
            f"{model} turns its head's logits of shape {list(expected.shape)} into {list(logits.shape)}: the "
            "loss cannot be computed from hidden states. Use chunked=False."
        )
    # Infinite logits are not compared, and neither are those of a diverged model: its loss will be NaN.
    difference, largest = (
        float(torch.where(expected.isfinite(), size, 0).max())
        for size in ((logits.float() - expected).abs(), expected.abs())
    )
    if not difference <= 0.02 * largest:
        raise ValueError(
            f"{model} transforms its head's logits in an unknown way (expected {transform}; the logits "
            f"differ by {difference:.3g}): the loss cannot be computed from hidden states. Use chunked=False."
        )
