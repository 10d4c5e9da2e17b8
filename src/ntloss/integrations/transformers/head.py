"""A model's head: its weight and bias with adapters, what the model does to its logits, its vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ntloss.engine.readout import Transform
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

# Largest logit of the probe that checks a head: large enough for a soft cap to have an effect.
_PROBE = 50.0
# Embeddings are padded for speed and for future tokens, by less than this.
_PADDING_SHARE, _PADDING_TOKENS = 1.1, 1024


class HeadTensors(NamedTuple):
    """The tensors of a head, whose logits are `hidden_states @ lm_head_weight.T + bias`.

    Args:
        hidden_states: `[..., hidden]`, with the low-rank activations of adapters appended.
        lm_head_weight: `[vocab, hidden]`, with their second matrices appended.
        bias: `[vocab]`, or None.
    """

    hidden_states: Tensor
    lm_head_weight: Tensor
    bias: Tensor | None


def find_head(model: Any) -> nn.Module:
    """Return the module that computes a model's logits.

    Raises:
        TypeError: not a transformers model.
        ValueError: the model has no linear head.
    """
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
    """Return the number tokens for the logits of a head, given these tokens or a tokenizer.

    Raises:
        ValueError: the tokenizer or vocabulary belongs to another model.
    """
    # Sharded by DeepSpeed, the weight itself is an empty tensor.
    weight: Any = head.weight
    rows = int(getattr(weight, "ds_shape", weight.shape)[0])
    if isinstance(numbers, NumberVocabulary):
        if numbers.vocab_size != rows:
            raise ValueError(
                f"the vocabulary has {numbers.vocab_size:,} tokens, the model's head {rows:,} rows: does it "
                "belong to another model? If the model's embeddings are padded: "
                f"NumberVocabulary.from_tokenizer(tokenizer, vocab_size={rows})."
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
            "expected the model's own tokenizer. If it is the right one: NumberVocabulary.from_tokenizer("
            f"tokenizer, vocab_size={rows})."
        )
    return NumberVocabulary.from_tokenizer(numbers, vocab_size=rows)


def logit_transform(config: Any) -> dict[str, float]:
    """Return the transform of a model's logits, as options of `NTLLinearCrossEntropyLoss`."""
    config = config.get_text_config(decoder=True)
    options: dict[str, float] = {}
    # Gemma models, RecurrentGemma, xLSTM.
    for name in ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"):
        if getattr(config, name, None) is not None:
            options["softcap"] = float(getattr(config, name))
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if isinstance(getattr(config, name, None), (int, float)):
            options.setdefault("logit_scale", float(getattr(config, name)))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None and config.model_type != "minicpm3":  # which scales the hidden states instead
        # Granite models divide by it, HyperCLOVA X multiplies.
        multiplies = config.model_type.startswith("hyperclovax")
        options.setdefault("logit_scale", float(scaling) if multiplies else 1 / scaling)
    return options


def head_tensors(head: nn.Module, hidden: Tensor) -> HeadTensors:
    """Return the tensors of a head, differentiable in the weights that an adapter trains.

    LoRA's product is not formed: its low-rank activations are appended to the hidden states, and its second
    matrix to the weight. So the adapter's dropout and scaling apply unchanged.

    Args:
        head: a linear layer, or PEFT's wrapper of one.
        hidden: `[..., hidden]`, its input.

    Returns:
        The tensors.

    Raises:
        ValueError: not a linear layer, or an adapter other than LoRA, `trainable_token_indices` and
            `modules_to_save`.
    """
    layer: Any = head
    if hasattr(layer, "token_adapter"):
        return _with_tokens(layer.token_adapter, hidden)
    if hasattr(layer, "modules_to_save"):
        active = [name for name in layer.active_adapters if name in layer.modules_to_save]
        if layer.disable_adapters or not active:
            return head_tensors(layer.original_module, hidden)
        return head_tensors(layer.modules_to_save[active[0]], hidden)
    if not hasattr(layer, "base_layer"):
        return _of_linear(layer, hidden)
    if layer.disable_adapters or layer.merged:
        return head_tensors(layer.base_layer, hidden)
    active = [name for name in layer.active_adapters if name in getattr(layer, "lora_A", {})]
    if not hasattr(layer, "lora_A") or any(name in layer.lora_variant for name in active):
        raise ValueError(
            f"the head is wrapped by an adapter ({type(layer).__module__}.{type(layer).__name__}) which "
            "has no separate low-rank weights: expected plain LoRA (no variant such as DoRA), "
            "modules_to_save or trainable_token_indices. Use chunked=False, which computes the logits."
        )
    tensors = head_tensors(layer.base_layer, hidden)
    for name in active:
        tensors = _with_lora(layer, name, hidden, tensors)
    return tensors


def _of_linear(layer: Any, hidden: Tensor) -> HeadTensors:
    if not hasattr(layer, "bias"):  # an embedding, whose weight the model multiplies with
        raise ValueError(
            f"the head is not a linear layer but {type(layer).__name__}, which the model does not call to "
            "compute logits. Use chunked=False, which computes the logits."
        )
    # With a model spread over several devices, the head may be on another one.
    return HeadTensors(hidden.to(layer.weight.device), layer.weight, layer.bias)


def _with_tokens(adapter: Any, hidden: Tensor) -> HeadTensors:
    tensors = head_tensors(adapter.base_layer, hidden)
    if adapter.disable_adapters or adapter.merged or not adapter.active_adapters:
        return tensors
    # PEFT ignores a bias here.
    return HeadTensors(tensors.hidden_states, adapter.get_merged_weights(adapter.active_adapters), None)


def _with_lora(layer: Any, name: str, hidden: Tensor, tensors: HeadTensors) -> HeadTensors:
    down, up, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
    inputs = layer.lora_dropout[name](hidden.to(down.weight))
    low_rank = (down(inputs) * scaling).to(tensors.hidden_states)
    dtype = tensors.lm_head_weight.dtype
    bias = tensors.bias
    if up.bias is not None:
        further = (up.bias * scaling).to(dtype)
        bias = further if bias is None else bias + further
    return HeadTensors(
        torch.cat([tensors.hidden_states, low_rank], -1),
        torch.cat([tensors.lm_head_weight, up.weight.to(dtype)], -1),
        bias,
    )


def probe_of(head_forward: Any, hidden: Tensor) -> Tensor:
    """Return the first position of each row, `[..., 1, hidden]`.

    They are scaled so that their largest logit is 50, where a soft cap has an effect.
    """
    probe = hidden[..., :1, :].detach()
    logits = head_forward(probe).abs()
    largest = float(torch.where(logits.isfinite(), logits, 0).max())  # a bias of -inf may disable tokens
    return probe * (_PROBE / largest) if largest > 0 else probe


def check_transform(head_logits: Tensor, logits: Tensor, transform: Transform, model: str) -> None:
    """Raise a ValueError unless a model transforms its head's logits as expected.

    Args:
        head_logits: `[..., vocab]`, of the head, with the model's final bias.
        logits: `[..., vocab]`, the model's outputs.
        transform: the expected transform.
        model: name of the model, for the error.
    """
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
