"""The loss in a model's head, from hidden states: logits are computed in chunks, and are never whole."""

from __future__ import annotations

from collections.abc import Callable
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

    states: Tensor  # `[..., hidden]`; or logits
    weight: Tensor | None = None  # `[vocab, hidden]`
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
        self._compute: Any = None  # what the head does during a call
        self._forward = self._run_head  # one object, so that a compiled model is not compiled again

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the linear loss cannot be traced
    def _run_head(self, *args: Any, **kwargs: Any) -> Any:
        return self._compute(*args, **kwargs)

    def __call__(
        self, model: Any, head: nn.Linear, run: Callable[[], Any], compute: Compute, width: int
    ) -> tuple[Any, Any]:
        """Call the model, whose head computes the loss.

        Args:
            model: the model without its wrappers.
            head: its `linear_head`.
            run: calls the model with its wrappers, and returns its outputs.
            compute: the loss of hidden states with their head, and maybe what the model does with logits.
            width: of the labels; prompts and images may stand before.

        Returns:
            The model's outputs, whose logits are those of one position, and what `compute` returned.

        Raises:
            ValueError: the model does not call its head, or does more with its logits than is known.
        """
        name, transform, own_forward = type(model).__name__, transform_of(model.config), head.forward
        final_bias = getattr(model, "final_logits_bias", None)  # of BART and similar models
        found, probed = None, torch.empty(0)  # what `compute` returned, and the logits of one position

        def compute_loss(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal found, probed
            if found is not None:
                return own_forward(hidden, *args, **kwargs)
            bias: Tensor | None = head.bias
            if final_bias is not None:
                own = final_bias.reshape(-1).to(hidden)
                bias = own if bias is None else bias + own
            # With a model spread over several devices, the head may be on another one.
            states = hidden[..., -width:, :].to(head.weight.device)
            found = compute(Inputs(states, head.weight, bias), transform, self.chunk_size)
            first = hidden[..., :1, :]
            if not self.checked:
                with torch.no_grad():
                    logits = own_forward(first).abs()
                largest = float(torch.where(logits.isfinite(), logits, 0).max())  # -inf disables tokens
                first = first * (_PROBE / largest) if largest > 0 else first  # so that a cap has an effect
            logits = own_forward(first)
            probed = logits.detach() if final_bias is None else logits.detach() + final_bias
            return logits

        replaced = vars(head).get("forward")
        self._compute, vars(head)["forward"] = compute_loss, self._forward
        try:
            outputs = run()
        finally:
            self._compute = None
            del vars(head)["forward"]
            if replaced is not None:
                vars(head)["forward"] = replaced
        if found is None:
            raise ValueError(
                f"{name}.forward never calls its head: use chunked=False, which computes the logits"
            )
        if not self.checked:
            _check_transform(probed, outputs["logits"].detach(), transform, name)
            self.checked = True
        return outputs, found


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


def linear_head(model: Any) -> nn.Linear | None:
    """Return the linear layer that makes a model's logits, also with PEFT's `modules_to_save`.

    None for another layer: an embedding, whose weight the model multiplies with, or an adapter's.
    """
    head: Any = find_head(model)
    if hasattr(head, "modules_to_save"):
        active = [name for name in head.active_adapters if name in head.modules_to_save]
        is_stock = head.disable_adapters or not active
        head = head.original_module if is_stock else head.modules_to_save[active[0]]
    return head if isinstance(head, nn.Linear) else None


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
