"""Makes a model's own loss number-aware, so that every trainer, and `model(**batch).loss`, has it."""

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
from ntloss.integrations.counts import Loss, counter_of
from ntloss.integrations.transformers.evaluation import EvaluatedTerms
from ntloss.integrations.transformers.head import HeadTensors, find_head, logit_transform, rows_of
from ntloss.integrations.transformers.held_head import HeldHead
from ntloss.integrations.transformers.introspection import (
    calls_loss_function,
    check_inline_loss,
    decoder_inputs_of,
    leads_to,
    shifts_labels,
    without_wrappers,
)
from ntloss.integrations.transformers.targets import (
    Targets,
    count_targets,
    read_targets,
    vocabulary_for,
)
from ntloss.vocabulary import NumberVocabulary

_STATE = "_number_aware"
_OPTIONS = {"mode", "label_smoothing", "z_loss", "validate", "ignore_index"}
_OPTIONS_OF_CHUNKS = {"chunk_size", "drop_ignored"}
Handle = TypeVar("Handle", bound="NumberAwareModel")


class NumberAwareModel:
    """A model whose own loss is number-aware; made by `make_number_aware`.

    As a context manager it undoes itself at the end.

    Attributes:
        model: the model itself, without wrappers.
        loss: what computes the loss of a training batch; `WeightScheduler(handle.loss, schedule)` sets its
            weight, in evaluation too.
        shift: whether the model is causal: position i predicts label i + 1.
        chunked: whether the loss of a training batch is computed from hidden states.
        terms: `LossTerms` of the last batch, detached; None before the first. Divided as its loss was: of a
            batch that is one of several accumulated, a share of theirs.
    """

    # A Trainer hands on its count of labels itself, or does not, where its own compute_loss calls the model.
    counts_beside_the_trainers: tuple[str, ...] = ("num_numbers_in_batch",)

    def __init__(self, model: nn.Module, loss: Loss, shift: bool) -> None:
        self.model: Any = model
        self.loss = loss
        self.shift = shift
        self.chunked = isinstance(loss, NTLLinearCrossEntropyLoss)
        self.terms: LossTerms | None = None
        self.evaluated = EvaluatedTerms()  # a Trainer listens to it while it evaluates
        self.active = True
        self._counter = counter_of(loss)
        self._loss_of_logits = loss if isinstance(loss, NTLCrossEntropyLoss) else _logits_twin(loss)
        self._names = tuple(inspect.signature(model.forward).parameters)
        self._calls_loss_function = calls_loss_function(type(model))
        self._entry: Callable[..., Any] | None = None
        self._previous: Callable[..., Any] | None = None
        self._before: NumberAwareModel | None = None
        self._depth = 0
        self._replaced: dict[str, Any] = {}
        self._head = HeldHead(model, loss.transform) if self.chunked else None
        self._targets: Targets | None = None
        self._computed: Tensor | None = None
        self._asked = False

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What computes losses: `loss`, and where that is from hidden states, its twin for evaluation."""
        return (self.loss, self._loss_of_logits) if self.chunked else (self.loss,)

    def normalizers(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Count labels and numbers of a batch; `CountedBatches` adds them up over micro-batches and ranks.

        Args:
            inputs: the batch; `labels`, `shift_labels` and `position_ids` are read.

        Returns:
            `num_items_in_batch` and `num_numbers_in_batch`, scalars, to call the model with.
        """
        counts = count_targets(self._counter, self.shift, inputs)
        return counts[0], counts[1]

    def undo(self) -> None:
        """Give the model its own loss back.

        Raises:
            ValueError: it has it back already.
        """
        if not self.active:
            raise ValueError("undone already: this model has its own loss")
        self.active = False
        if self._head is not None:
            self._head.release()
        for name, value in self._replaced.items():
            delattr(self.model, name)
            if value is not None:
                setattr(self.model, name, value)
        # What has been wrapped around us since, such as autocast, calls us: we then pass everything on.
        if getattr(vars(self.model).get("forward"), "__func__", None) is self._entry:
            del self.model.forward
            if self._previous is not None:
                self.model.forward = self._previous
            delattr(self.model, _STATE)
            if self._before is not None:
                setattr(self.model, _STATE, self._before)

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
            "save_pretrained, or call handle.undo() first and make_number_aware again where it is loaded."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NumberAwareModel:
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def install(self) -> None:
        """Put this loss in the model's place of its own."""
        # One that was undone may still be called by what has wrapped it. We take its place, unless
        # something lies between that may answer by itself, as the forward that an SFTTrainer puts there.
        before, forward = vars(self.model).get(_STATE), vars(self.model).get("forward")
        if before is not None and leads_to(forward, before._entry):
            self._entry, self._previous = before._entry, before._previous
            self._before, self._depth = before._before, before._depth
        else:
            self._previous, self._before = forward, before
            self._depth = 0 if before is None else before._depth + 1
            self._entry = _make_forward(self.model, self._depth)
            self.model.forward = types.MethodType(self._entry, self.model)
        setattr(self.model, _STATE, self)
        self._replace("accepts_loss_kwargs", True)  # so that a trainer gives us its counts
        if self._calls_loss_function:
            self._replace("_loss_function", self._loss_function)
        if self._head is not None:
            self._head.hold()

    def _replace(self, name: str, value: Any) -> None:
        self._replaced[name] = vars(self.model).get(name)
        setattr(self.model, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, with this loss."""
        kwargs = self.by_name(args, kwargs)
        if not self.active or kwargs.get("labels") is None:
            kwargs.pop("num_numbers_in_batch", None)
            return self._call(**kwargs)
        if kwargs.get("fused_lm_head"):
            raise ValueError(
                "an SFTTrainer asks this model for more than its own loss: call handle.undo(), and then "
                "ntloss.integrations.trl.make_sft_number_aware(trainer)"
            )
        return_dict = kwargs.pop("return_dict", None)
        as_tuple = (self.model.config.return_dict if return_dict is None else return_dict) is False
        targets, kwargs = self.read(kwargs)
        from_hidden = self.chunked and self.model.training
        outputs, _ = self.run(targets, from_hidden, kwargs)
        return outputs.to_tuple() if as_tuple else outputs

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """A call's arguments, all as keywords."""
        # No `zip`: the compiler of torch 2.7 cannot trace its `strict`.
        return {**{self._names[index]: value for index, value in enumerate(args)}, **kwargs}

    def read(self, kwargs: dict[str, Any]) -> tuple[Targets, dict[str, Any]]:
        """Take from a call's keywords what the loss needs, and leave what the model does."""
        kwargs = {**kwargs, "return_dict": True}
        targets = read_targets(
            self.loss,
            self.shift,
            kwargs["labels"],
            kwargs.pop("shift_labels", None),
            kwargs.get("position_ids"),
            kwargs.pop("num_items_in_batch", None),
            kwargs.pop("num_numbers_in_batch", None),
        )
        return targets, kwargs if self._calls_loss_function else self._without_labels(kwargs)

    def _call(self, **kwargs: Any) -> Any:
        if self._previous is not None:
            return self._previous(**kwargs)
        return type(self.model).forward(self.model, **kwargs)

    def _without_labels(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Give the model what it would have made of the labels itself."""
        labels = kwargs.pop("labels")
        if "use_cache" in self._names:
            kwargs["use_cache"] = False
        config = self.model.config
        if config.is_encoder_decoder and not {"decoder_input_ids", "decoder_inputs_embeds"} & {
            name for name, value in kwargs.items() if value is not None
        }:
            kwargs["decoder_input_ids"] = decoder_inputs_of(self.model, labels)
        if kwargs.get("output_router_logits") or getattr(config, "output_router_logits", False):
            raise ValueError(
                f"{type(self.model).__name__} adds its routers' loss inline, which would be lost: leave "
                "output_router_logits away, or use NTLCrossEntropyLoss on its logits and add it yourself"
            )
        return kwargs

    def run(self, targets: Targets, from_hidden: bool, kwargs: dict[str, Any]) -> tuple[Any, Tensor]:
        """Call the model.

        Args:
            targets: of the batch.
            from_hidden: compute the loss in the head's place.
            kwargs: what the model is called with.

        Returns:
            outputs: of the model, with the loss, and without logits where they were not computed.
            loss: this one alone; that of the outputs may have a router's added.
        """
        head = self._head if from_hidden else None
        self._targets, self._computed, self._asked = targets, None, not self._calls_loss_function
        try:
            if head is not None:
                head.hold()
                head.expect(self._compute_of_hidden)
            outputs = self._call(**kwargs)
            if head is not None:
                head.check(outputs["logits"])
            elif not self._calls_loss_function:
                self._compute_of_logits(outputs["logits"])
            loss = self._computed if self._asked else None
        finally:
            self._targets = self._computed = None
            if head is not None:
                head.expect(None)
        if loss is None:
            never = (
                "calls its head: use chunked=False, which computes the logits"
                if self._asked
                else "asks for a loss: expected a language model, whose loss_function was not replaced since"
            )
            raise ValueError(f"{type(self.model).__name__}.forward never {never}")
        # Where accelerate puts the outputs of a model that is spread.
        loss = loss.to(outputs["logits"].device)
        made = {**outputs, "loss": outputs["loss"] if self._calls_loss_function else loss}
        if head is not None:
            made["logits"] = None
        return type(outputs)(**made), loss

    def _loss_function(self, logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:
        """What the model calls in place of `model.loss_function`."""
        if self._targets is None:
            raise ValueError(
                "model.loss_function was called outside of the model's forward, or a second time in it: call "
                "the model with labels. Where it has several losses, use NTLCrossEntropyLoss on its logits."
            )
        self._asked = True
        if self._computed is None:
            self._compute_of_logits(logits)
        assert self._computed is not None
        self._targets = None  # another head's loss would be this one's
        return self._computed.clone()  # mixtures add their routers' loss to it in place

    def _compute_of_logits(self, logits: Tensor) -> None:
        assert self._targets is not None
        if self._loss_of_logits.weight is not self.loss.weight:
            self._loss_of_logits.weight = self.loss.weight
        self._compute(self._loss_of_logits, logits=logits, **self._targets.arguments(logits.device))

    def _compute_of_hidden(self, tensors: HeadTensors) -> None:
        assert self._targets is not None
        arguments = self._targets.arguments(tensors.hidden.device)
        tensors_by_name = dict(zip(("hidden_states", "lm_head_weight", "bias"), tensors, strict=True))
        self._compute(self.loss, **tensors_by_name, **arguments)

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
    reweigh: bool | None = None,
    *,
    chunked: bool = False,
    shift: bool | None = None,
    **options: Any,
) -> NumberAwareModel:
    r"""Make a model's own loss number-aware: `model(**batch).loss` is cross-entropy plus $\lambda$ NTL.

    In place, and undone by `handle.undo()`. Models that call `model.loss_function` (Llama, Qwen, Gemma,
    Mamba, GPT-2, ...) get another one; T5, BART and their kin, which compute their loss inline, are called
    without labels. Nothing of it is saved, and the state dict's keys stay. Normalised by `num_items_in_batch`
    and `num_numbers_in_batch` where the model is called with them: `count_numbers(trainer)` has a Trainer do
    so (`make_trainer_number_aware(trainer)` does both), `CountedBatches(loader, handle)` a loop of your own.

    Args:
        model: a causal, masked or encoder-decoder language model of transformers, PEFT's included.
        numbers: the model's tokenizer, read by default, or its `NumberVocabulary`.
        criterion, weight, reweigh: see `NTLCrossEntropyLoss`.
        chunked: compute the loss of training batches from hidden states by `NTLLinearCrossEntropyLoss`:
            `outputs.logits` is None then, and never in memory. Evaluation and generation have logits.
            Default: False.
        shift: whether position i predicts label i + 1. Default: as the model's class says.
        options: `mode`, `label_smoothing`, `z_loss`, `ignore_index`, `validate` of `NTLCrossEntropyLoss`;
            with `chunked` also `chunk_size` and `drop_ignored` of `NTLLinearCrossEntropyLoss`.

    Returns:
        The handle: its `loss`, its `undo`.

    Raises:
        TypeError: an option that there is not.
        ValueError: the tokenizer is another model's; no head; number-aware already; a class whose loss is no
            cross-entropy of its logits, or that does not say whether labels are shifted.

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
    return make_handle(NumberAwareModel, model, numbers, criterion, weight, reweigh, chunked, shift, options)


def make_handle(
    handle_class: type[Handle],
    model: Any,
    numbers: NumberVocabulary | Any,
    criterion: Criterion | None,
    weight: float | Tensor | None,
    reweigh: bool | None,
    chunked: bool,
    shift: bool | None,
    options: dict[str, Any],
) -> Handle:
    """`make_number_aware`, with a handle of some class."""
    model = without_wrappers(model)
    rows = rows_of(find_head(model))
    if handle_of(model) is not None:
        raise ValueError(
            f"this {type(model).__name__} is number-aware already: call undo() of its handle first. Two "
            "number terms are one criterion: WeightedSum."
        )
    if "_loss_function" in vars(model):
        raise ValueError(
            f"the loss_function of this {type(model).__name__} was replaced, and would be once more: use "
            "NTLCrossEntropyLoss in your own, or give the model its own back"
        )
    check_options(options, _OPTIONS | (_OPTIONS_OF_CHUNKS if chunked else set()))
    vocabulary = vocabulary_for(numbers, rows)
    check_inline_loss(model)
    made = NTLLinearCrossEntropyLoss if chunked else NTLCrossEntropyLoss
    if chunked:
        options = options | logit_transform(model.config)
    loss = made(vocabulary, criterion, weight, reweigh, return_terms=True, **options)
    handle = handle_class(model, loss, shifts_labels(model) if shift is None else shift)
    handle.install()
    return handle


def check_options(options: dict[str, Any], expected: set[str]) -> None:
    """Raise where an option is not one of the loss's that the user decides on."""
    if unknown := set(options) - expected:
        raise TypeError(
            f"{', '.join(sorted(unknown))}: expected some of {', '.join(sorted(expected))}. Shift, reduction "
            "and the logits' transform are the model's; chunk_size and drop_ignored go with chunked=True; "
            "digit_level and space_prefixed are of the vocabulary: give NumberVocabulary.from_tokenizer("
            "tokenizer, digit_level=False, vocab_size=model.config.vocab_size) in the tokenizer's place."
        )


def handle_of(model: Any) -> NumberAwareModel | None:
    """The handle of a number-aware model, or None."""
    handle = vars(without_wrappers(model)).get(_STATE)
    return handle if handle is not None and handle.active else None


def _logits_twin(loss: NTLLinearCrossEntropyLoss) -> NTLCrossEntropyLoss:
    """The same loss from logits, to which the model has done its scaling and capping."""
    objective = loss.objective
    return NTLCrossEntropyLoss(
        loss.vocabulary,
        objective.criterion,
        loss.weight,
        objective.worst is not None,
        mode=loss.mode,
        ignore_index=loss.ignore_index,
        label_smoothing=objective.label_smoothing,
        z_loss=objective.z_loss,
        return_terms=True,
        validate=loss.validate,
    )


def _make_forward(model: nn.Module, depth: int) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = getattr(self, _STATE)
        while handle._depth > depth:
            handle = handle._before
        return handle.forward(*args, **kwargs)

    # Trainers read the signature. Not `functools.wraps`: who unwraps what others put around us would go on to
    # the stock forward.
    forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    forward.__doc__ = type(model).forward.__doc__
    return forward
