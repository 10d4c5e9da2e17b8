"""A model's head: its weight and bias, adapters included, and what is done to the logits behind it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ntloss.engine.readout import Transform

# Largest logit of the probe that a head is checked with: large enough for a soft cap to show.
_PROBE = 50.0


class HeadTensors(NamedTuple):
    """What makes logits of hidden states: `hidden @ weight.T + bias`.

    Args:
        hidden: `[..., hidden]`, with the low-rank inputs of adapters behind it.
        weight: `[vocab, hidden]`, likewise.
        bias: `[vocab]`, or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None


def find_head(model: Any) -> nn.Module:
    """The module that makes a model's logits.

    Args:
        model: a transformers model.

    Returns:
        Its output embeddings.

    Raises:
        TypeError: no model of transformers.
        ValueError: it has none.
    """
    if not hasattr(model, "get_output_embeddings"):
        raise TypeError(f"expected a model of transformers, given {type(model).__name__}")
    head: nn.Module | None = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if head is None or not isinstance(weight, Tensor) or weight.dim() not in (1, 2):
        given = "none" if head is None else f"{type(head).__name__} without a weight [vocab, hidden]"
        raise ValueError(
            f"no head found: {type(model).__name__}.get_output_embeddings() gives {given}. Expected a "
            "language model with a linear head, such as AutoModelForCausalLM makes."
        )
    return head


def rows_of(head: nn.Module) -> int:
    """Width of the logits that a head makes."""
    # DeepSpeed leaves an empty tensor behind where it has sharded one.
    weight: Any = head.weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def logit_transform(config: Any) -> dict[str, float]:
    """What a model does to the logits behind its head.

    Args:
        config: of the model.

    Returns:
        `softcap` and `logit_scale`, those that it has; options of a linear loss.
    """
    config = config.get_text_config(decoder=True)
    options: dict[str, float] = {}
    # Gemma's kin, RecurrentGemma, xLSTM.
    for name in ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"):
        if getattr(config, name, None) is not None:
            options["softcap"] = float(getattr(config, name))
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if isinstance(getattr(config, name, None), (int, float)):
            options.setdefault("logit_scale", float(getattr(config, name)))
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None and config.model_type != "minicpm3":  # which scales in front of its head
        # Granite and its kin divide by it, HyperCLOVA X multiplies.
        multiplies = config.model_type.startswith("hyperclovax")
        options.setdefault("logit_scale", float(scaling) if multiplies else 1 / scaling)
    return options


def head_tensors(head: nn.Module, hidden: Tensor) -> HeadTensors:
    """Weight and bias of a head, differentiable in what an adapter trains.

    LoRA's product is not formed: its low-rank activations go behind the hidden states, and its second matrix
    behind the weight, so that dropout and scaling are what they are in the adapter.

    Args:
        head: a linear layer, or PEFT's wrapper of one.
        hidden: `[..., hidden]`, its input.

    Returns:
        The tensors.

    Raises:
        ValueError: an adapter other than LoRA, single tokens, or a copy that is trained whole; no linear
            layer.
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
            f"the head is wrapped by an adapter ({type(layer).__module__}.{type(layer).__name__}) whose "
            "weight cannot be taken apart: expected LoRA, without variants such as DoRA, modules_to_save or "
            "trainable_token_indices. Use chunked=False, which computes the logits."
        )
    tensors = head_tensors(layer.base_layer, hidden)
    for name in active:
        tensors = _with_lora(layer, name, hidden, tensors)
    return tensors


def _of_linear(layer: Any, hidden: Tensor) -> HeadTensors:
    if not hasattr(layer, "bias"):  # an embedding, whose weight the model takes
        raise ValueError(
            f"the head is no linear layer but {type(layer).__name__}: the loss cannot be computed where it "
            "is called. Use chunked=False, which computes the logits."
        )
    # With the model spread over several devices, the head may be on another.
    return HeadTensors(hidden.to(layer.weight.device), layer.weight, layer.bias)


def _with_tokens(adapter: Any, hidden: Tensor) -> HeadTensors:
    tensors = head_tensors(adapter.base_layer, hidden)
    if adapter.disable_adapters or adapter.merged or not adapter.active_adapters:
        return tensors
    # PEFT leaves a bias away here.
    return HeadTensors(tensors.hidden, adapter.get_merged_weights(adapter.active_adapters), None)


def _with_lora(layer: Any, name: str, hidden: Tensor, tensors: HeadTensors) -> HeadTensors:
    down, up, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
    inputs = layer.lora_dropout[name](hidden.to(down.weight))
    low_rank = (down(inputs) * scaling).to(tensors.hidden)
    dtype = tensors.weight.dtype
    bias = tensors.bias
    if up.bias is not None:
        further = (up.bias * scaling).to(dtype)
        bias = further if bias is None else bias + further
    return HeadTensors(
        torch.cat([tensors.hidden, low_rank], -1), torch.cat([tensors.weight, up.weight.to(dtype)], -1), bias
    )


def probe_of(head_forward: Any, hidden: Tensor) -> Tensor:
    """One position for each row, enlarged until its logits show what is done to them; `[..., 1, hidden]`."""
    probe = hidden[..., :1, :].detach()
    logits = head_forward(probe).abs()
    largest = float(torch.where(logits.isfinite(), logits, 0).max())  # a bias may switch tokens off, by -inf
    return probe * (_PROBE / largest) if largest > 0 else probe


def check_logits_behind(head_logits: Tensor, logits: Tensor, transform: Transform, model: str) -> None:
    """Raise unless a model's logits are what the linear loss takes them for.

    Args:
        head_logits: `[..., vocab]`, of the head and the model's final bias.
        logits: `[..., vocab]`, what the model made of them.
        transform: what it is known to do.
        model: name, for the error.
    """
    expected = transform.apply(head_logits.float())
    if logits.shape != expected.shape:
        raise ValueError(
            f"{model} makes logits of shape {list(logits.shape)} of its head's {list(expected.shape)}: the "
            "loss cannot be computed from hidden states. Use chunked=False."
        )
    # Infinite logits and those of a model that has diverged, which is for the loss to show, say nothing.
    difference, largest = (
        float(torch.where(expected.isfinite(), size, 0).max())
        for size in ((logits.float() - expected).abs(), expected.abs())
    )
    if not difference <= 0.02 * largest:
        raise ValueError(
            f"{model} does something to its head's logits that is not known here ({transform} is; the logits "
            f"differ by {difference:.3g}): the loss cannot be computed from hidden states. Use chunked=False."
        )
