"""The loss in a model's head, from hidden states: logits are computed in chunks, and are never whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.engine.read import rows_for
from ntloss.engine.readout import Transform
from ntloss.trainers.models import find_head

# Largest logit of the probe that checks a head: large enough for a soft cap to have an effect.
_PROBE = 50.0
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier")
PLAIN = Transform()


class Inputs(NamedTuple):
    """What a loss is computed from: hidden states and their head, or logits."""

    states: Tensor  # `[..., hidden]`, with the low-rank activations of adapters appended; or logits
    weight: Tensor | None = None  # `[vocab, hidden]`, with their second matrices appended
    bias: Tensor | None = None  # `[vocab]`


Compute = Callable[[Inputs, Transform, int | None], Any]


@torch.no_grad()
def entropy_and_hits(given: Inputs, labels: Tensor, transform: Transform) -> tuple[Tensor, Tensor]:
    """Sum the entropies at labels that count, and count those that are the most likely token.

    An `SFTTrainer` logs both.
    """
    labels, states = labels.reshape(-1), given.states.flatten(0, -2)
    positions = (labels >= 0).nonzero().squeeze(-1)
    entropy = hits = torch.zeros((), device=labels.device)
    width = states.shape[-1] if given.weight is None else len(given.weight)
    for rows in torch.split(positions, max(rows_for(len(positions), width, labels.device), 1)):
        logits = states[rows]
        if given.weight is not None:
            logits = F.linear(logits, given.weight, given.bias)
        log_probs = transform.apply(logits.float()).log_softmax(-1)
        entropy = entropy - torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
        hits = hits + (log_probs.argmax(-1) == labels[rows]).sum()
    return entropy, hits


class ChunkedHead:
    """Calls a model whose head computes the loss in place of the logits.

    The head's weight is read in its forward, the only place where sharded weights are gathered. The rest of
    the model gets the logits of one position, so it costs little. They show what it does with logits, and
    through the model's outputs they keep the graph to all weights, which data parallelism follows.
    """

    def __init__(self, chunk_size: int | None) -> None:
        self.chunk_size = chunk_size
        self.checked = False  # the head of the model
        self._forward = self._in_head  # one object, so that a compiled model is not compiled again
        self._call: Any = None

    def __call__(self, model: Any, run: Callable[[], Any], compute: Compute, width: int) -> tuple[Any, Any]:
        """Call the model, whose head computes the loss.

        Args:
            model: the model without its wrappers.
            run: calls the model with its wrappers, and returns its outputs.
            compute: the loss of hidden states with their head, and maybe what the model does with logits.
            width: of the labels; prompts and images may stand before.

        Returns:
            The model's outputs, whose logits are those of one position, and what `compute` returned.

        Raises:
            ValueError: the model does not call its head, or does more with its logits than is known.
        """
        name, head = type(model).__name__, find_head(model)  # an adapter may have wrapped it since
        replaced = vars(head).get("forward")
        bias = getattr(model, "final_logits_bias", None)  # of BART and similar models
        self._call = call = _Call(head, head.forward, transform_of(model.config), bias, compute, width)
        vars(head)["forward"] = self._forward
        try:
            outputs = run()
        finally:
            self._call = None
            del vars(head)["forward"]
            if replaced is not None:
                vars(head)["forward"] = replaced
        if call.found is None:
            raise ValueError(
                f"{name}.forward never calls its head: use chunked=False, which computes the logits"
            )
        if not self.checked and call.probed is not None:
            _check_transform(call.probed, outputs["logits"].detach(), call.transform, name)
            self.checked = True
        return outputs, call.found

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
    def _in_head(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        call: _Call = self._call
        if call.found is not None:
            return call.own_forward(hidden, *args, **kwargs)
        inputs = head_inputs(call.head, hidden[..., -call.width :, :])
        if call.final_bias is not None:
            own = call.final_bias.reshape(-1).to(hidden)
            inputs = inputs._replace(bias=own if inputs.bias is None else inputs.bias + own)
        call.found = call.compute(inputs, call.transform, self.chunk_size)
        first = hidden[..., :1, :]
        if not self.checked:
            with torch.no_grad():
                logits = call.own_forward(first).abs()
            largest = float(torch.where(logits.isfinite(), logits, 0).max())  # a bias of -inf disables tokens
            first = first * (_PROBE / largest) if largest > 0 else first  # so that a soft cap has an effect
        logits = call.own_forward(first)
        call.probed = logits.detach() if call.final_bias is None else logits.detach() + call.final_bias
        return logits


@dataclass
class _Call:
    """What one call of the model hands to its head, and what the head leaves."""

    head: nn.Module
    own_forward: Callable[..., Any]  # of the head
    transform: Transform
    final_bias: Tensor | None
    compute: Compute
    width: int
    found: Any = None
    probed: Tensor | None = None  # the logits of one position


def transform_of(config: Any) -> Transform:
    """Return what a model does with its head's logits, by its configuration."""
    config = config.get_text_config(decoder=True)
    caps = [cap for name in _SOFT_CAPS if (cap := getattr(config, name, None)) is not None]
    scales = [scale for name in _SCALES if isinstance(scale := getattr(config, name, None), int | float)]
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None and config.model_type != "minicpm3":  # which scales the hidden states instead
        # Granite models divide by it, HyperCLOVA X multiplies.
        scales.append(scaling if config.model_type.startswith("hyperclovax") else 1 / scaling)
    return Transform(float(scales[0]) if scales else 1.0, float(caps[-1]) if caps else None)


def head_inputs(head: nn.Module, hidden: Tensor) -> Inputs:
    """Return the tensors of a linear layer or PEFT's wrapper of one, differentiable in the adapter's weights.

    LoRA's product is not formed: its low-rank activations are appended to the hidden states, and its second
    matrix to the weight. So the adapter's dropout and scaling apply unchanged.

    Raises:
        ValueError: another layer, or an adapter other than LoRA, `trainable_token_indices` and
            `modules_to_save`.
    """
    layer: Any = head
    if hasattr(layer, "token_adapter"):
        adapter = layer.token_adapter
        inputs = head_inputs(adapter.base_layer, hidden)
        if adapter.disable_adapters or adapter.merged or not adapter.active_adapters:
            return inputs
        # PEFT ignores a bias here.
        return Inputs(inputs.states, adapter.get_merged_weights(adapter.active_adapters), None)
    if hasattr(layer, "modules_to_save"):
        active = [name for name in layer.active_adapters if name in layer.modules_to_save]
        is_stock = layer.disable_adapters or not active
        return head_inputs(layer.original_module if is_stock else layer.modules_to_save[active[0]], hidden)
    if not hasattr(layer, "base_layer"):
        if not hasattr(layer, "bias"):  # an embedding, whose weight the model multiplies with
            raise ValueError(
                f"the head is not a linear layer but {type(layer).__name__}, which the model does not call "
                "to compute logits. Use chunked=False, which computes the logits."
            )
        # With a model spread over several devices, the head may be on another one.
        return Inputs(hidden.to(layer.weight.device), layer.weight, layer.bias)
    if layer.disable_adapters or layer.merged:
        return head_inputs(layer.base_layer, hidden)
    active = [name for name in layer.active_adapters if name in getattr(layer, "lora_A", {})]
    if not hasattr(layer, "lora_A") or any(name in layer.lora_variant for name in active):
        raise ValueError(
            f"the head is wrapped by an adapter ({type(layer).__module__}.{type(layer).__name__}) which "
            "has no separate low-rank weights: expected plain LoRA (no variant such as DoRA), "
            "modules_to_save or trainable_token_indices. Use chunked=False, which computes the logits."
        )
    weight: Any
    states, weight, bias = head_inputs(layer.base_layer, hidden)
    for name in active:
        down, up, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
        low_rank = down(layer.lora_dropout[name](hidden.to(down.weight))) * scaling
        states = torch.cat([states, low_rank.to(states)], -1)
        weight = torch.cat([weight, up.weight.to(weight.dtype)], -1)
        if up.bias is not None:
            further = (up.bias * scaling).to(weight.dtype)
            bias = further if bias is None else bias + further
    return Inputs(states, weight, bias)


def _check_transform(head_logits: Tensor, logits: Tensor, transform: Transform, model: str) -> None:
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
