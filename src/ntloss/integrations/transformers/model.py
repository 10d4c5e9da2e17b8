"""Makes a model's own loss number-aware, so that `model(**batch).loss` and every trainer include it."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ntloss import LossTerms, NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import Criterion
from ntloss.criteria.registry import as_criterion, title_of
from ntloss.engine.targets import shift_left
from ntloss.integrations.collator import NUMBER_SAMPLES, NUMBER_WEIGHTS, OF_NUMBERS
from ntloss.integrations.options import Loss, describe_unknown
from ntloss.integrations.transformers.architecture import (
    HeadTensors,
    calls_loss_function,
    check_inline_loss,
    check_transform,
    find_head,
    logit_transform,
    loss_in_head,
    shifts_labels,
    vocabulary_for,
    without_labels,
    without_wrappers,
)
from ntloss.numbers.spans import sequence_ids_of

_STATE = "_number_aware"
_OF_LOSS = ("mode", "normalize_by", "label_smoothing", "z_loss", "ignore_index")
_OF_CHUNKS = ("chunk_size", "drop_ignored")
_OF_VOCABULARY = ("tokens", "vocab_size")
_OF_MODEL = ("reduction", "softcap", "logit_scale")
_FUSED = "fused_lm_head"  # with it, trainers of TRL ask for log-probabilities in place of logits


class NumberAwareModel:
    """A model whose own loss is number-aware; `make_number_aware` returns it.

    It replaces the model's `forward`, and the `loss_function` that this calls, if it does. `undo` restores
    them; as a context manager, the handle calls it at the end.

    Attributes:
        model: the model, without wrappers.
        losses: `loss`, and with `chunked` the same loss from logits, for evaluation.
        loss: the loss of training batches; its `weight` also applies to evaluation.
        shift, chunked: see `make_number_aware`.
        restores: what `undo` calls besides, such as a function that restores a trainer.
        terms: `LossTerms` of the last batch, detached; None before the first. Under gradient accumulation,
            this micro-batch's share.
        num_items: the count that the last batch was called with, or None.
        fused: answers a trainer of TRL, if `make_sft_number_aware` made the handle; else None.
    """

    fused: Any = None

    def __init__(self, model: Any, losses: tuple[Loss, ...], shift: bool | None = None) -> None:
        self.model, self.losses = model, losses
        self.loss, self._loss_of_logits = losses[0], losses[-1]
        self.chunked = len(losses) > 1
        self.shift = shifts_labels(model) if shift is None else shift
        self.terms: LossTerms | None = None
        self.num_items: Tensor | float | None = None
        self.active = True
        self.restores: list[Callable[[], None]] = []
        self.__signature__ = inspect.signature(model.forward)  # trainers and `generate` read it
        self._names = tuple(self.__signature__.parameters)
        self._calls_loss_function = calls_loss_function(type(model))
        # State of one call. Between `compute` and the loss stands the model's own forward, which passes on
        # logits or hidden states and labels alone: `_inputs` are what else the loss needs (None once it was
        # computed, and between calls), `_computed` is the loss.
        self._inputs: dict[str, Any] | None = None
        self._computed: Tensor | None = None
        self._head_checked = False
        ours = {_STATE: self, "forward": self, "accepts_loss_kwargs": True}  # makes a Trainer pass its count
        if self._calls_loss_function:
            ours["_loss_function"] = self._loss_function
        if hasattr(model, "generate"):
            self._generate = model.generate
            ours["generate"] = self.generate
        self._replaced = {name: vars(model).get(name) for name in ours}
        for name, value in ours.items():
            setattr(model, name, value)
        self._check = model.base_model.register_forward_pre_hook(_check_not_replaced)

    def __repr__(self) -> str:
        criterion, mode = title_of(self.loss.criterion), self.loss.options.mode
        replaced = " in place of cross-entropy" if mode == "replace" else ""
        count = len(self.loss.vocabulary.tokens)
        undone = "" if self.active else " (undone)"
        return f"{criterion}{replaced}, λ {float(self.loss.weight):g}, {count:,} number tokens{undone}"

    def undo(self) -> None:
        """Restore the model's own loss, and the trainer if one was made number-aware.

        Raises:
            ValueError: it is already restored.
        """
        if not self.active:
            raise ValueError("undone already: this model has its own loss")
        self.active = False
        self._check.remove()
        forward = vars(self.model).get("forward")
        for name, value in self._replaced.items():
            # If this forward has been wrapped since, for example for autocast, it stays and passes calls on.
            if name == "forward" and getattr(forward, "__func__", forward) is not self:
                continue
            delattr(self.model, name)
            if value is not None:
                setattr(self.model, name, value)
        while self.restores:
            self.restores.pop()()

    def __enter__(self) -> NumberAwareModel:
        return self

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.undo()

    def __getstate__(self) -> dict[str, Any]:
        if not self.active:
            return vars(self)
        raise TypeError(
            "a number-aware model cannot be pickled: its loss would silently be the stock one. Save it with "
            "save_pretrained, or call handle.undo() first and make_number_aware again after loading."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NumberAwareModel:
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update(copy.deepcopy({**vars(self), "restores": []}, memo))  # the trainer is not copied
        return twin

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's `generate`, without the columns for the loss that a Seq2SeqTrainer passes."""
        return self._generate(*args, **{k: v for k, v in kwargs.items() if k not in OF_NUMBERS})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, with this loss; see `compute` for its errors."""
        if args and args[0] is self.model:  # accelerate binds a forward that it unwraps
            args = args[1:]
        # No `zip`: the compiler of torch 2.7 cannot trace its `strict`.
        return self.forward(**{**{self._names[i]: value for i, value in enumerate(args)}, **kwargs})

    def forward(self, **kwargs: Any) -> Any:
        """Run the model's forward, given keywords alone."""
        if not self.active:
            return self._own_forward(**kwargs)
        if kwargs.get("labels") is None:
            for name in OF_NUMBERS:  # which a stock model does not expect
                kwargs.pop(name, None)
            return self._own_forward(**kwargs)
        if kwargs.pop(_FUSED, False):
            return self.fused(kwargs) if self.fused is not None else _raise_for_trl()
        return_dict = kwargs.pop("return_dict", None)
        as_tuple = (self.model.config.return_dict if return_dict is None else return_dict) is False
        outputs, _ = self.compute(kwargs, from_hidden=self.chunked and self.model.training)
        return outputs.to_tuple() if as_tuple else outputs

    def _own_forward(self, **kwargs: Any) -> Any:
        if (replaced := self._replaced["forward"]) is not None:
            return replaced(**kwargs)
        return type(self.model).forward(self.model, **kwargs)

    def compute(self, kwargs: dict[str, Any], from_hidden: bool) -> tuple[Any, Tensor]:
        """Call the model with labels; a ValueError if it does not ask for a loss, or call its head.

        Return its outputs, without logits if the loss is computed `from_hidden` states, and this loss alone;
        that of the outputs may include a router's.
        """
        kwargs = {**kwargs, "return_dict": True}
        self._computed, self._inputs = None, self._inputs_of(kwargs)
        self.num_items = self._inputs["num_items_in_batch"]
        try:
            if not self._calls_loss_function:
                kwargs = without_labels(self.model, self._names, kwargs)
            outputs = self._without_logits(kwargs) if from_hidden else self._own_forward(**kwargs)
            if not self._calls_loss_function and not from_hidden:
                self._compute(self._loss_of_logits, logits=outputs["logits"])
            asked = self._inputs is None or not self._calls_loss_function
            loss = self._computed if asked else None
        finally:
            self._inputs = self._computed = None
        if loss is None:
            never = "calls its head: use chunked=False, which computes the logits"
            if not asked:
                never = "asks for a loss: expected one whose loss_function has not been replaced since"
            raise ValueError(f"{type(self.model).__name__}.forward never {never}")
        loss = loss.to(outputs["logits"].device)  # accelerate may move the outputs of a spread model
        made = {**outputs, "loss": outputs["loss"] if self._calls_loss_function else loss}
        if from_hidden:
            made["logits"] = None
        return type(outputs)(**made), loss

    def _inputs_of(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Take what only the loss reads from the arguments of a call, aligned with the model's positions."""
        labels, shift_labels = kwargs["labels"], kwargs.pop("shift_labels", None)
        number_weights, position_ids = kwargs.pop(NUMBER_WEIGHTS, None), kwargs.get("position_ids")
        if shift_labels is not None and number_weights is not None:
            # Context parallelism has also split the labels, but not the weights.
            raise ValueError(
                "number_weights are aligned with labels, but the batch also has shift_labels: omit "
                "shift_labels, because the loss shifts labels itself. Context parallelism needs shift_labels "
                "and does not support number_weights."
            )
        sequence_ids = None
        if position_ids is not None and position_ids.shape == labels.shape:
            sequence_ids = sequence_ids_of(position_ids)
        if self.shift:
            labels = shift_left(labels, self.loss.options.ignore_index)
            number_weights, sequence_ids = shift_left(number_weights), shift_left(sequence_ids, -1)
        return {
            "labels": labels if shift_labels is None else shift_labels,
            "sequence_ids": sequence_ids,
            NUMBER_WEIGHTS: number_weights,
            NUMBER_SAMPLES: kwargs.pop(NUMBER_SAMPLES, None),
            "num_items_in_batch": kwargs.pop("num_items_in_batch", None),
        }

    # Not recursive: the model's own forward is still compiled.
    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call, untyped-decorator]
    def _without_logits(self, kwargs: dict[str, Any]) -> Any:
        with loss_in_head(self.model, self._compute_of_hidden, not self._head_checked) as probed:
            outputs = self._own_forward(**kwargs)
        if probed:
            check_transform(probed[0], outputs["logits"], self.loss.transform, type(self.model).__name__)
            self._head_checked = True
        return outputs

    def _loss_function(self, logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:
        """Replace `model.loss_function`; a ValueError outside the model's forward, or twice in it."""
        if self._inputs is None:
            raise ValueError(
                "model.loss_function was called outside the model's forward, or twice in it: call the model "
                "with labels. If it has several losses, use NTLCrossEntropyLoss on its logits."
            )
        if self._computed is None:
            self._compute(self._loss_of_logits, logits=logits)
        assert self._computed is not None
        self._inputs = None  # so that the loss of a second head is an error
        return self._computed.clone()  # mixtures of experts add their routers' loss in place

    def _compute_of_hidden(self, tensors: HeadTensors) -> None:
        self._compute(self.loss, **tensors._asdict())
        if self.fused is not None and self._inputs is not None:
            self.fused.measure(tensors, self._inputs["labels"])

    def _compute(self, loss: Loss, **inputs: Any) -> None:
        assert self._inputs is not None
        if loss.weight is not self.loss.weight:
            loss.weight = self.loss.weight
        device = next(iter(inputs.values())).device  # of the head, which may differ from the batch's
        terms: Any = loss(**inputs, **on_device(self._inputs, device))
        self._computed = terms.loss
        self.terms = LossTerms(*(term.detach() for term in terms))


def make_number_aware(
    model: Any,
    numbers: NumberVocabulary | Any,
    criterion: Criterion | str | Mapping[str, Any] | None = None,
    weight: float | Tensor | None = None,
    *,
    chunked: bool = False,
    shift: bool | None = None,
    **options: Any,
) -> NumberAwareModel:
    r"""Make a model's own loss number-aware: `model(**batch).loss` is cross-entropy plus $\lambda$ NTL.

    The model is changed in place; `handle.undo()` restores it. Models that call `model.loss_function` (Llama,
    Qwen, Gemma, Mamba, GPT-2, ...) get a number-aware one. T5, BART and similar models compute their loss
    inline and are called without labels. Nothing is saved with the model; its state dict keeps its keys.

    Both terms are divided by `num_items_in_batch` if the model is called with it, as every Trainer does: the
    count of labels over the accumulated batches and all ranks. A batch may have `number_weights`,
    `[batch, seq]`, a factor of the number term at each of the unshifted `labels` (see
    `NTLCrossEntropyLoss.forward`), and `number_samples`, `[batch, samples]`; `generate` ignores both.

    Args:
        model: a causal, masked or encoder-decoder language model of transformers, or PEFT's wrapper of one.
        numbers: the model's tokenizer, or its `NumberVocabulary`.
        criterion, weight: see `NTLCrossEntropyLoss`.
        chunked: compute the loss of training batches from hidden states with `NTLLinearCrossEntropyLoss`:
            `outputs.logits` is None, and the logits are never in memory. Evaluation and generation still
            compute logits. Default: False.
        shift: whether position i predicts label i + 1. Default: depends on the model's class.
        options: `mode`, `normalize_by`, `label_smoothing`, `z_loss`, `ignore_index` of
            `NTLCrossEntropyLoss`; with `chunked` also `chunk_size` and `drop_ignored` of
            `NTLLinearCrossEntropyLoss`.

    Returns:
        The handle, with `loss` and `undo`; it prints as `NTL-WAS, λ 0.3, 10 number tokens`.

    Raises:
        TypeError: an unknown option; the message lists the valid ones.
        ValueError: the tokenizer is another model's; the model has no head, or is already number-aware; its
            class computes a loss other than cross-entropy of its logits, or does not determine whether labels
            are shifted.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from ntloss import NumberVocabulary
        >>> config = LlamaConfig(vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> with make_number_aware(model, digits, weight=0.5) as handle:
        ...     ids = torch.tensor([[1, 11, 4, 2]])
        ...     loss = model(input_ids=ids, labels=ids).loss
        >>> bool(torch.isclose(loss, handle.terms.ce + 0.5 * handle.terms.ntl))
        True
    """
    model = without_wrappers(model)
    head = find_head(model)
    if handle_of(model) is not None:
        raise ValueError(
            f"this {type(model).__name__} is already number-aware: call undo() of its handle first. To "
            "add two number terms, use the criterion WeightedSum."
        )
    if "_loss_function" in vars(model):
        raise ValueError(
            f"the loss_function of this {type(model).__name__} has been replaced, and your function "
            "would be lost: use NTLCrossEntropyLoss in it, or restore the model's own"
        )
    _check_options(options, chunked)
    # One criterion for both losses, so that a schedule reaches that of evaluation, too.
    criterion = None if criterion is None else as_criterion(criterion)
    term = (vocabulary_for(numbers, head), criterion, weight)
    check_inline_loss(model)
    shared = {name: value for name, value in options.items() if name in _OF_LOSS}
    of_logits = NTLCrossEntropyLoss(*term, return_terms=True, **shared)
    if not chunked:
        return NumberAwareModel(model, (of_logits,), shift)
    # The model transforms its logits itself, but this loss starts from hidden states.
    options = options | logit_transform(model.config)
    of_hidden = NTLLinearCrossEntropyLoss(*term, return_terms=True, **options)
    return NumberAwareModel(model, (of_hidden, of_logits), shift)


def _check_options(options: dict[str, Any], chunked: bool) -> None:
    """Raise a TypeError for an option that a number-aware model does not have."""
    known = ("weight", "criterion", *_OF_LOSS, "chunked", "shift", *_OF_CHUNKS * chunked)
    if not (message := describe_unknown(options, known)):
        return
    for names, advice in (
        (_OF_CHUNKS, "it needs chunked=True"),
        (_OF_MODEL, "the model determines it"),
        (
            _OF_VOCABULARY,
            "in place of the tokenizer, pass NumberVocabulary.from_tokenizer(tokenizer, tokens='numbers', "
            "vocab_size=model.config.vocab_size)",
        ),
    ):
        if found := [name for name in names if name in options]:
            message = f"{found[0]} is no option of this loss: {advice}"
    raise TypeError(message)


def handle_of(model: Any) -> NumberAwareModel | None:
    """Return the handle of a number-aware model, or None."""
    handle: NumberAwareModel | None = vars(without_wrappers(model)).get(_STATE)
    return handle


def on_device(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move tensors to a device; a scalar on the CPU works with tensors of any device, without a copy."""

    def move(value: Any) -> Any:
        stays = not isinstance(value, Tensor) or (value.dim() == 0 and value.device.type == "cpu")
        return value if stays else value.to(device)

    return {name: move(value) for name, value in arguments.items()}


def _check_not_replaced(*_: Any) -> None:
    """Raise a ValueError if a trainer of TRL has replaced the forward since, and calls the model's body."""
    if torch.compiler.is_compiling():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if _FUSED in frame.f_code.co_varnames and frame.f_locals.get(_FUSED):
            _raise_for_trl()


def _raise_for_trl() -> NoReturn:
    raise ValueError(
        "a trainer of TRL computes its loss from the model's hidden states, without the number-aware loss: "
        "call handle.undo(), and then for an SFTTrainer "
        "ntloss.integrations.trl.make_sft_number_aware(trainer)"
    )
