"""Makes a model's own loss number-aware, so that `model(**batch).loss` and every trainer include it."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from ntloss.criteria import Criterion
from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
from ntloss.engine.objective import LossTerms
from ntloss.integrations.collator import NUMBER_WEIGHTS
from ntloss.integrations.counts import Loss, counter_of
from ntloss.integrations.transformers.aligned_labels import align_labels, on_device
from ntloss.integrations.transformers.evaluation import TermSums
from ntloss.integrations.transformers.head import HeadTensors, find_head, logit_transform, vocabulary_for
from ntloss.integrations.transformers.head_hook import HeadHook
from ntloss.integrations.transformers.introspection import (
    calls_loss_function,
    check_inline_loss,
    leads_to,
    shifts_labels,
    without_labels,
    without_wrappers,
)
from ntloss.numbers.vocabulary import NumberVocabulary

_STATE = "_number_aware"
_OPTIONS = {"mode", "normalize_by", "label_smoothing", "z_loss", "validate", "ignore_index"}
_OPTIONS_OF_CHUNKS = {"chunk_size", "drop_ignored"}
_WITH_LABELS = ("num_numbers_in_batch", NUMBER_WEIGHTS)  # what only this loss reads
Handle = TypeVar("Handle", bound="NumberAwareModel")


class NumberAwareModel:
    """A model whose own loss is number-aware; `make_number_aware` returns it.

    As a context manager, it calls `undo` at the end.

    Attributes:
        model: the model, without wrappers.
        losses: `loss`, and if that takes hidden states, the same loss from logits, for evaluation.
        loss: the loss of training batches; `WeightScheduler(handle.loss, schedule)` sets its weight, also for
            evaluation.
        shift: whether the model is causal: position i predicts label i + 1.
        chunked: whether the loss of training batches is computed from hidden states.
        terms: `LossTerms` of the last batch, detached; None before the first. Under gradient accumulation,
            this micro-batch's share.
    """

    # A Trainer passes its count of labels to the model itself. One with its own compute_loss may not.
    counts_to_pass: tuple[str, ...] = ("num_numbers_in_batch",)

    def __init__(self, model: nn.Module, losses: tuple[Loss, ...], shift: bool) -> None:
        self.model: Any = model
        self.losses = losses
        self.loss, self._loss_of_logits = losses[0], losses[-1]
        self.shift = shift
        self.chunked = self.loss is not self._loss_of_logits
        self.terms: LossTerms | None = None
        self.evaluated = TermSums()  # of batches that are computed while a Trainer evaluates
        self.active = True
        self._counter = counter_of(self.loss)
        self._names = tuple(inspect.signature(model.forward).parameters)
        self._calls_loss_function = calls_loss_function(type(model))
        self._entry: Callable[..., Any] | None = None
        self._previous: Callable[..., Any] | None = None
        self._replaced: dict[str, Any] = {}
        self._head_hook = HeadHook(model, self.loss.transform) if self.chunked else None
        self._aligned: dict[str, Any] | None = None
        self._computed: Tensor | None = None
        self._asked = False

    def normalizers(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Count labels and numbers of a batch; `CountedBatches` sums them over micro-batches and ranks.

        Args:
            inputs: the batch; `labels`, `shift_labels`, `position_ids` and `number_weights` are read.

        Returns:
            `num_items_in_batch` and `num_numbers_in_batch`, scalars, to be passed to the model.
        """
        optional = {name: inputs.get(name) for name in ("shift_labels", "position_ids", NUMBER_WEIGHTS)}
        aligned = align_labels(self._counter, self.shift, inputs["labels"], **optional)
        labels, sequence_ids = aligned["labels"], aligned["sequence_ids"]
        return self._counter.normalizers(labels, None, sequence_ids, aligned[NUMBER_WEIGHTS])

    def undo(self) -> None:
        """Restore the model's own loss.

        Raises:
            ValueError: it is already restored.
        """
        if not self.active:
            raise ValueError("undone already: this model has its own loss")
        self.active = False
        if self._head_hook is not None:
            self._head_hook.detach()
        for name, value in self._replaced.items():
            delattr(self.model, name)
            if value is not None:
                setattr(self.model, name, value)
        # If this forward has been wrapped since, for example for autocast, it stays and passes calls on.
        if getattr(vars(self.model).get("forward"), "__func__", None) is self._entry:
            del self.model.forward
            if self._previous is not None:
                self.model.forward = self._previous
            handles = getattr(self.model, _STATE)
            handles.pop()
            if not handles:
                delattr(self.model, _STATE)

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
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def install(self) -> None:
        """Replace the model's loss by this one."""
        handles, forward = vars(self.model).setdefault(_STATE, []), vars(self.model).get("forward")
        # A wrapper may still call the forward of an undone handle: reuse that forward. Not if a forward in
        # between may answer without calling it, as an SFTTrainer's does.
        if handles and leads_to(forward, handles[-1]._entry):
            self._entry, self._previous = handles[-1]._entry, handles[-1]._previous
            handles[-1] = self
        else:
            self._entry, self._previous = _make_forward(self.model, len(handles)), forward
            self.model.forward = types.MethodType(self._entry, self.model)
            handles.append(self)
        self._replace("accepts_loss_kwargs", True)  # makes a Trainer pass its counts
        if self._calls_loss_function:
            self._replace("_loss_function", self._loss_function)
        if hasattr(self.model, "generate"):
            self._generate = self.model.generate
            self._replace("generate", self.generate)
        if self._head_hook is not None:
            self._head_hook.attach()

    def _replace(self, name: str, value: Any) -> None:
        self._replaced[name] = vars(self.model).get(name)
        setattr(self.model, name, value)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's `generate`, without the weights that a Seq2SeqTrainer passes with a batch."""
        kwargs.pop(NUMBER_WEIGHTS, None)
        return self._generate(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, with this loss; see `compute` for its errors."""
        kwargs = self.as_keywords(args, kwargs)
        if not self.active or kwargs.get("labels") is None:
            return self._call(**{name: value for name, value in kwargs.items() if name not in _WITH_LABELS})
        if kwargs.get("fused_lm_head"):
            raise ValueError(
                "an SFTTrainer needs more than the model's own loss: call handle.undo(), and then "
                "ntloss.integrations.trl.make_sft_number_aware(trainer)"
            )
        return_dict = kwargs.pop("return_dict", None)
        as_tuple = (self.model.config.return_dict if return_dict is None else return_dict) is False
        outputs, _ = self.compute(kwargs, from_hidden=self.chunked and self.model.training)
        return outputs.to_tuple() if as_tuple else outputs

    def as_keywords(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, all as keywords."""
        # No `zip`: the compiler of torch 2.7 cannot trace its `strict`.
        return {**{self._names[index]: value for index, value in enumerate(args)}, **kwargs}

    def _call(self, **kwargs: Any) -> Any:
        if self._previous is not None:
            return self._previous(**kwargs)
        return type(self.model).forward(self.model, **kwargs)

    def compute(self, kwargs: dict[str, Any], from_hidden: bool) -> tuple[Any, Tensor]:
        """Call the model with labels; a ValueError if it does not ask for a loss, or call its head.

        Args:
            kwargs: arguments of the call.
            from_hidden: compute the loss from hidden states, in place of the logits.

        Returns:
            outputs: of the model, with the loss; their logits are None with `from_hidden`.
            loss: this loss alone; that of the outputs may include a router's.
        """
        kwargs = {**kwargs, "return_dict": True}
        self._aligned = align_labels(
            self.loss,
            self.shift,
            kwargs["labels"],
            kwargs.pop("shift_labels", None),
            kwargs.get("position_ids"),
            kwargs.pop("num_items_in_batch", None),
            kwargs.pop("num_numbers_in_batch", None),
            kwargs.pop(NUMBER_WEIGHTS, None),
        )
        self._computed, self._asked = None, not self._calls_loss_function
        hook = self._head_hook if from_hidden else None
        try:
            if not self._calls_loss_function:
                kwargs = without_labels(self.model, self._names, kwargs)
            if hook is not None:
                hook.attach()
                hook.compute_next(self._compute_of_hidden)
            outputs = self._call(**kwargs)
            if hook is not None:
                hook.check(outputs["logits"])
            elif not self._calls_loss_function:
                self._compute_of_logits(outputs["logits"])
            loss = self._computed if self._asked else None
        finally:
            self._aligned = self._computed = None
            if hook is not None:
                hook.compute_next(None)
        if loss is None:
            never = (
                "asks for a loss: expected a language model whose loss_function has not been replaced since"
            )
            if self._asked:
                never = "calls its head: use chunked=False, which computes the logits"
            raise ValueError(f"{type(self.model).__name__}.forward never {never}")
        loss = loss.to(outputs["logits"].device)  # accelerate may move the outputs of a spread model
        made = {**outputs, "loss": outputs["loss"] if self._calls_loss_function else loss}
        if hook is not None:
            made["logits"] = None
        return type(outputs)(**made), loss

    def _loss_function(self, logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:
        """Replace `model.loss_function`; a ValueError outside the model's forward, or twice in it."""
        if self._aligned is None:
            raise ValueError(
                "model.loss_function was called outside the model's forward, or twice in it: call the model "
                "with labels. If it has several losses, use NTLCrossEntropyLoss on its logits."
            )
        self._asked = True
        if self._computed is None:
            self._compute_of_logits(logits)
        assert self._computed is not None
        self._aligned = None  # so that the loss of a second head is an error
        return self._computed.clone()  # mixtures of experts add their routers' loss in place

    def _compute_of_logits(self, logits: Tensor) -> None:
        assert self._aligned is not None
        if self._loss_of_logits.weight is not self.loss.weight:
            self._loss_of_logits.weight = self.loss.weight
        self._compute(self._loss_of_logits, logits=logits, **on_device(self._aligned, logits.device))

    def _compute_of_hidden(self, tensors: HeadTensors) -> None:
        assert self._aligned is not None
        arguments = on_device(self._aligned, tensors.hidden_states.device)
        self._compute(self.loss, **tensors._asdict(), **arguments)

    def _compute(self, loss: Loss, **inputs: Any) -> None:
        terms: Any = loss(**inputs)
        self._computed = terms.loss
        self.terms = LossTerms(*(term.detach() for term in terms))
        if self.evaluated.listening:
            self.evaluated.see(loss, inputs, self.terms)


def make_number_aware(
    model: Any,
    numbers: NumberVocabulary | Any,
    criterion: Criterion | None = None,
    weight: float | Tensor | None = None,
    reweigh: bool = False,
    *,
    chunked: bool = False,
    shift: bool | None = None,
    **options: Any,
) -> NumberAwareModel:
    r"""Make a model's own loss number-aware: `model(**batch).loss` is cross-entropy plus $\lambda$ NTL.

    The model is changed in place; `handle.undo()` restores it. Models that call `model.loss_function` (Llama,
    Qwen, Gemma, Mamba, GPT-2, ...) get a number-aware one. T5, BART and similar models compute their loss
    inline and are called without labels. Nothing is saved with the model; its state dict keeps its keys.

    The loss is divided by `num_items_in_batch` and `num_numbers_in_batch` if the model is called with them.
    `make_trainer_number_aware(trainer)` makes a Trainer pass them, `CountedBatches(loader, handle)` computes
    them. A batch may have `number_weights`, `[batch, seq]`, a factor of the number term at each of the
    unshifted `labels` (see `NTLCrossEntropyLoss.forward`); `generate` ignores them.

    Args:
        model: a causal, masked or encoder-decoder language model of transformers, or PEFT's wrapper of one.
        numbers: the model's tokenizer, or its `NumberVocabulary`.
        criterion, weight, reweigh: see `NTLCrossEntropyLoss`.
        chunked: compute the loss of training batches from hidden states with `NTLLinearCrossEntropyLoss`:
            `outputs.logits` is None, and the logits are never in memory. Evaluation and generation still
            compute logits. Default: False.
        shift: whether position i predicts label i + 1. Default: depends on the model's class.
        options: `mode`, `label_smoothing`, `z_loss`, `ignore_index`, `validate` of `NTLCrossEntropyLoss`;
            with `chunked` also `chunk_size` and `drop_ignored` of `NTLLinearCrossEntropyLoss`.

    Returns:
        The handle, with `loss` and `undo`.

    Raises:
        TypeError: an unknown option.
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
    number_term = (criterion, weight, reweigh)
    return install_handle(NumberAwareModel, model, numbers, number_term, chunked, shift, options)


def install_handle(
    handle_class: type[Handle],
    model: Any,
    numbers: NumberVocabulary | Any,
    number_term: tuple[Criterion | None, float | Tensor | None, bool],
    chunked: bool,
    shift: bool | None,
    options: dict[str, Any],
) -> Handle:
    """Implement `make_number_aware`, with its errors, for a given class of handle."""
    model = without_wrappers(model)
    head = find_head(model)
    if handle_of(model) is not None:
        raise ValueError(
            f"this {type(model).__name__} is already number-aware: call undo() of its handle first. To add "
            "two number terms, use the criterion WeightedSum."
        )
    if "_loss_function" in vars(model):
        raise ValueError(
            f"the loss_function of this {type(model).__name__} has been replaced, and your function would be "
            "lost: use NTLCrossEntropyLoss in it, or restore the model's own"
        )
    _check_options(options, _OPTIONS | (_OPTIONS_OF_CHUNKS if chunked else set()))
    vocabulary = vocabulary_for(numbers, head)
    check_inline_loss(model)
    options = {"normalize_by": "numbers", **options}
    shared = {name: value for name, value in options.items() if name in _OPTIONS}
    losses: tuple[Loss, ...] = (NTLCrossEntropyLoss(vocabulary, *number_term, return_terms=True, **shared),)
    if chunked:  # the model transforms its logits itself, but this loss starts from hidden states
        options = options | logit_transform(model.config)
        losses = (NTLLinearCrossEntropyLoss(vocabulary, *number_term, return_terms=True, **options), *losses)
    handle = handle_class(model, losses, shifts_labels(model) if shift is None else shift)
    handle.install()
    return handle


def _check_options(options: dict[str, Any], expected: set[str]) -> None:
    """Raise a TypeError for options that are unknown, or that depend on the model."""
    if unknown := set(options) - expected:
        raise TypeError(
            f"{', '.join(sorted(unknown))}: expected some of {', '.join(sorted(expected))}. The model "
            "determines shift, reduction and the logits' transform; chunk_size and drop_ignored need "
            "chunked=True; for options of the vocabulary such as digit_level, pass NumberVocabulary."
            "from_tokenizer(tokenizer, digit_level=False, vocab_size=model.config.vocab_size) in place of "
            "the tokenizer."
        )


def handle_of(model: Any) -> NumberAwareModel | None:
    """Return the handle of a number-aware model, or None."""
    handles = vars(without_wrappers(model)).get(_STATE)
    return handles[-1] if handles and handles[-1].active else None


def _make_forward(model: nn.Module, index: int) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, _STATE)[index].forward(*args, **kwargs)

    # Trainers read the signature. `functools.wraps` would lead code that unwraps it to the stock forward.
    forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    forward.__doc__ = type(model).forward.__doc__
    return forward
