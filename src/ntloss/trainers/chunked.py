"""The loss in a model's head, from hidden states: logits are computed in chunks, and are never whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss import LossTerms, NTLCrossEntropyLoss
from ntloss.engine.readout import Transform
from ntloss.engine.sources import rows_for
from ntloss.engine.targets import PreparedLabels
from ntloss.trainers.models import find_head

# Largest logit of the probe that checks a head: large enough for a soft cap to have an effect.
_PROBE = 50.0
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier")


class HeadTensors(NamedTuple):
    """The tensors of a head, whose logits are `hidden_states @ lm_head_weight.T + bias`."""

    hidden_states: Tensor  # `[..., hidden]`, with the low-rank activations of adapters appended
    lm_head_weight: Tensor  # `[vocab, hidden]`, with their second matrices appended
    bias: Tensor | None  # `[vocab]`


class ModelCall(NamedTuple):
    """A call of a model with labels, whose loss is computed outside of it."""

    model: Any  # without its wrappers
    wrapped: Any  # the model that is called
    args: tuple[Any, ...]
    inputs: dict[str, Any]  # keywords of the call, without labels
    record: PreparedLabels  # of `[batch, seq]` labels
    count: Any  # of labels, by which the loss is divided
    measures: bool  # whether `entropy_and_hits` is asked for
    evaluates: bool  # whether cross-entropy at all labels is asked for

    def outputs(self) -> Any:
        """Call the model."""
        return self.wrapped(*self.args, **{**self.inputs, "return_dict": True})

    def beside_on(self, device: torch.device) -> tuple[PreparedLabels, Any]:
        """Return the record and the count on a device."""
        count = self.count
        # A scalar on the CPU works with tensors of any device, without a copy.
        stays = not isinstance(count, Tensor) or (count.dim() == 0 and count.device.type == "cpu")
        return self.record.to(device), count if stays else count.to(device)


class Computed(NamedTuple):
    """What a call of a model gives, and the loss of its labels."""

    outputs: Any
    terms: LossTerms
    ce: Tensor  # cross-entropy at all labels in an evaluation, else that of the terms
    measured: tuple[Tensor, Tensor] | None  # `entropy_and_hits`, for an SFTTrainer


class ChunkedHead:
    """Calls a model whose head computes the loss in place of the logits.

    The head's weight is read in its forward, the only place where sharded weights are gathered. The rest of
    the model gets the logits of one position, so it costs little. They show what it does with logits, and
    through the model's outputs they keep the graph to all weights, which data parallelism follows.
    """

    def __init__(self, loss: NTLCrossEntropyLoss, plain: NTLCrossEntropyLoss, chunk_size: int | None) -> None:
        self.loss, self.plain, self.chunk_size = loss, plain, chunk_size  # `plain` is cross-entropy alone
        self.checked = False  # the head of the model
        self._forward = self._in_head  # one object, so that a compiled model is not compiled again
        self._call: Any = None  # what a call of the model hands to its head

    def __call__(self, given: ModelCall) -> Computed:
        """Call the model, and compute the loss in its head.

        Raises:
            ValueError: the model does not call its head, or does more with its logits than is known.
        """
        model = given.model
        transform = transform_of(model.config)
        head = find_head(model)  # an adapter may have wrapped it since the last call
        replaced = vars(head).get("forward")
        bias = getattr(model, "final_logits_bias", None)  # of BART and similar models
        self._call = call = _HeadCall(given, head, head.forward, transform, bias)
        vars(head)["forward"] = self._forward
        try:
            outputs = given.outputs()
        finally:
            self._call = None
            del vars(head)["forward"]
            if replaced is not None:
                vars(head)["forward"] = replaced
        if call.terms is None:
            raise ValueError(
                f"{type(model).__name__}.forward never calls its head: use chunked=False, which computes the "
                "logits"
            )
        if not self.checked and call.probed is not None:
            _check_transform(call.probed, outputs["logits"].detach(), transform, type(model).__name__)
            self.checked = True
        nothing = outputs["logits"][..., :0, :].sum().to(call.terms.loss)
        outputs["logits"] = None
        ce = call.terms.ce if call.ce is None else call.ce
        terms = call.terms._replace(loss=call.terms.loss + nothing)
        return Computed(outputs, terms, ce, call.measured)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
    def _in_head(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        call: _HeadCall = self._call
        if call.terms is not None:
            return call.own_forward(hidden, *args, **kwargs)
        width = call.given.record.labels.shape[-1]  # prompts and images may stand before
        tensors = head_tensors(call.head, hidden[..., -width:, :])
        if call.final_bias is not None:
            final_bias = call.final_bias.reshape(-1).to(hidden)
            tensors = tensors._replace(bias=final_bias if tensors.bias is None else tensors.bias + final_bias)
        record, count = call.given.beside_on(tensors.hidden_states.device)
        states, *head = tensors
        softcap, scale = call.transform.softcap, call.transform.scale
        options = {"softcap": softcap, "logit_scale": scale, "chunk_size": self.chunk_size, "count": count}
        call.terms = self.loss.terms(states, record, *head, **options)
        if call.given.evaluates:
            call.ce = self.plain.terms(states, record, *head, **options).ce
        if call.given.measures:
            call.measured = _of_hidden(tensors, record.labels, call.transform)
        first = hidden[..., :1, :]
        if not self.checked:
            with torch.no_grad():
                logits = call.own_forward(first).abs()
                largest = float(
                    torch.where(logits.isfinite(), logits, 0).max()
                )  # a bias of -inf disables tokens
            first = first * (_PROBE / largest) if largest > 0 else first  # so that a soft cap has an effect
        logits = call.own_forward(first)
        call.probed = logits.detach() if call.final_bias is None else logits.detach() + final_bias
        return logits


@dataclass
class _HeadCall:
    """What one call of the model hands to its head, and what the head found."""

    given: ModelCall
    head: nn.Module
    own_forward: Callable[..., Any]  # of the head
    transform: Transform
    final_bias: Tensor | None
    terms: LossTerms | None = None
    ce: Tensor | None = None
    measured: tuple[Tensor, Tensor] | None = None
    probed: Tensor | None = None  # the logits of one position


@torch.no_grad()
def entropy_and_hits(
    labels: Tensor, vocab_size: int, logits_of: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Sum the entropies at labels that count, and count those that are the most likely token.

    `logits_of` maps the indices of some positions to their logits. An `SFTTrainer` logs both.
    """
    labels = labels.reshape(-1)
    positions = (labels >= 0).nonzero().squeeze(-1)
    entropy = hits = torch.zeros((), device=labels.device)
    for rows in torch.split(positions, max(rows_for(len(positions), vocab_size, labels.device), 1)):
        log_probs = logits_of(rows).float().log_softmax(-1)
        entropy = entropy - torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
        hits = hits + (log_probs.argmax(-1) == labels[rows]).sum()
    return entropy, hits


def _of_hidden(tensors: HeadTensors, labels: Tensor, transform: Transform) -> tuple[Tensor, Tensor]:
    hidden = tensors.hidden_states.detach().reshape(-1, tensors.hidden_states.shape[-1])

    def logits_of(rows: Tensor) -> Tensor:
        return transform.apply(F.linear(hidden[rows], tensors.lm_head_weight, tensors.bias).float())

    return entropy_and_hits(labels, len(tensors.lm_head_weight), logits_of)


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


def head_tensors(head: nn.Module, hidden: Tensor) -> HeadTensors:
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
