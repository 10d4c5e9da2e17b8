"""How a model of transformers is called for its logits alone, and what else its own loss holds."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

# Embeddings are padded for speed and for future tokens, by less than this.
_PADDING_SHARE, _PADDING_TOKENS = 1.1, 1024
_UNWRITTEN_TOKENS = 16  # of a tokenizer, without a row in the head
# What the forward of a model calls to derive its decoder's inputs from labels, as the first does.
_DERIVE = ("prepare_decoder_input_ids_from_labels", "_shift_right", "shift_tokens_right")
_ROUTER_WEIGHTS = ("router_aux_loss_coef", "aux_loss_coef", "moe_loss_weight")


def without_wrappers(model: Any) -> Any:
    """Return the model inside torch.compile, DistributedDataParallel, FSDP, DeepSpeed and PEFT wrappers.

    Raises:
        TypeError: there is no model of transformers inside.
    """
    given = type(model).__name__
    # Wrappers forward their model's attributes, so only their classes tell them from it.
    while not hasattr(type(model), "get_output_embeddings"):
        if hasattr(type(model), "get_base_model"):
            model = model.get_base_model()
            continue
        inside = getattr(model, "_modules", {})
        names = [name for name in ("_orig_mod", "module", "_fsdp_wrapped_module") if name in inside]
        if not names:
            raise TypeError(f"expected a model of transformers, given {given}")
        model = inside[names[0]]
    return model


def find_head(model: Any) -> nn.Module:
    """Return the linear module that computes a model's logits.

    Raises:
        ValueError: the model has none.
    """
    head: nn.Module | None = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if head is None or not isinstance(weight, Tensor) or weight.dim() not in (1, 2):
        given = "none" if head is None else f"{type(head).__name__} without a weight [vocab, hidden]"
        raise ValueError(
            f"no head found: {type(model).__name__}.get_output_embeddings() returns {given}. Expected a "
            "language model with a linear head, such as one from AutoModelForCausalLM."
        )
    return head


def vocabulary_of(model: Any, processor: Any, given: Any, thousands: str | None) -> NumberVocabulary:
    """Return the number tokens that were given, or those of a trainer's processor, for a model's head.

    Raises:
        TypeError: neither a tokenizer nor a vocabulary.
        ValueError: none is given; another model's; `thousands` beside a vocabulary, which has its own, or no
            separator; a number token that ends texts, pads them, or stands for unknown ones.
    """
    # A processor has a tokenizer.
    tokenizer, numbers = (getattr(each, "tokenizer", each) for each in (processor, given))
    numbers = tokenizer if numbers is None else numbers
    if numbers is None:
        raise ValueError("the trainer has no processing_class: pass the model's tokenizer as vocabulary")
    # Sharded by DeepSpeed, the weight itself is an empty tensor.
    weight: Any = find_head(model).weight
    rows = int(getattr(weight, "ds_shape", weight.shape)[0])
    again = f"If the rows are padding: NumberVocabulary.from_tokenizer(tokenizer, vocab_size={rows})."
    if isinstance(numbers, NumberVocabulary):
        vocabulary = numbers
        if thousands not in (None, vocabulary.thousands):
            raise ValueError(
                f"thousands={thousands!r}, but the vocabulary has {vocabulary.thousands!r}: make it "
                f"with NumberVocabulary.from_tokenizer(tokenizer, thousands={thousands!r})"
            )
        if vocabulary.vocab_size != rows:
            raise ValueError(
                f"the vocabulary has {vocabulary.vocab_size:,} tokens, the model's head {rows:,} rows: "
                f"expected the model's own vocabulary. {again}"
            )
    elif hasattr(numbers, "get_vocab"):
        ids = numbers.get_vocab().values()
        # Some have a token that the model reads but never writes, such as Gemma 3's for images.
        is_too_large = sum(i >= rows for i in ids) > _UNWRITTEN_TOKENS
        if is_too_large or rows > _PADDING_SHARE * len(ids) + _PADDING_TOKENS:
            raise ValueError(
                f"the tokenizer has {len(ids):,} tokens (ids to {max(ids):,}), the head {rows:,} rows: "
                "expected the model's own tokenizer. If tokens were added to it: "
                f"model.resize_token_embeddings(len(tokenizer)). {again}"
            )
        vocabulary = NumberVocabulary.from_tokenizer(numbers, vocab_size=rows, thousands=thousands)
    else:
        vocabulary = as_vocabulary(numbers)  # whose error says what was expected
    number_ids = vocabulary.token_ids
    for name in ("unk", "eos", "bos", "pad"):
        if (token := getattr(tokenizer, f"{name}_token_id", None)) in number_ids:
            raise ValueError(
                f"vocabulary: the number token {token} is the tokenizer's {name}_token. To train the levels "
                "of a score, use NumberVocabulary.from_levels(tokenizer, levels)"
            )
    return vocabulary


def is_masked(model: Any) -> bool:
    """Whether a model predicts tokens that are masked in its input."""
    return getattr(model, "loss_type", None) == "ForMaskedLM"


def shifts_labels(model: Any) -> bool:
    """Whether a model's position i predicts label i + 1.

    Raises:
        ValueError: its own loss is not cross-entropy of its logits, or its class does not tell.
    """
    names = _names_in_forward(model)
    known = ("CrossEntropyLoss", "cross_entropy", "loss_f")  # loss_function, loss_fct, mlm_loss_fct, loss_fn
    if not any(part in name for part in known for name in names):
        raise ValueError(
            f"{type(model).__name__}.forward computes no cross-entropy that could be made number-aware: "
            "expected a language model. If its forward was replaced, pass shift=True if position i predicts "
            "label i + 1, else shift=False."
        )
    if model.config.is_encoder_decoder or is_masked(model):
        return False
    if "loss_function" not in names:
        raise ValueError(
            f"{type(model).__name__} computes its loss inline and is not an encoder-decoder: whether it "
            "shifts labels is unknown. Pass shift=True if position i predicts label i + 1, else shift=False."
        )
    return True  # transformers, too, treats unknown loss types as those of causal models


def _names_in_forward(model: Any) -> set[str]:
    """Return the names that the forward of a model's class, or of a parent, looks up."""
    parents = [parent for parent in type(model).__mro__ if "forward" in vars(parent)]
    forwards = [inspect.unwrap(vars(parent)["forward"]) for parent in parents]
    return {name for forward in forwards for name in forward.__code__.co_names}


def inputs_for_logits(model: Any, inputs: dict[str, Any], labels: Tensor) -> dict[str, Any]:
    """Return the inputs of a call for the logits alone.

    They have no labels, but for an encoder-decoder without a method that derives its decoder's inputs from
    labels. Raise a ValueError if the call would add a loss of routers inline.
    """
    if not model.config.is_encoder_decoder:
        return inputs
    if inputs.get("output_router_logits") or getattr(model.config, "output_router_logits", False):
        raise ValueError(
            f"{type(model).__name__} adds its routers' loss where it computes its own, which would be lost: "
            "omit output_router_logits"
        )
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs = {**inputs, "use_cache": False}
    if any(inputs.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds")):
        return inputs
    derive = getattr(model, _DERIVE[0], None)
    # FSMT derives them from the source, and EncoderDecoderModel also masks them.
    is_known = _names_in_forward(model) & {*_DERIVE} and type(model).__name__ != "EncoderDecoderModel"
    if derive is None or not is_known:
        return {**inputs, "labels": labels}
    return {**inputs, "decoder_input_ids": derive(labels)}


def added_loss(model: Any, outputs: Any, has_labels: bool) -> Tensor | None:
    """Return what a model adds to the loss of its labels, from a call for its logits; None if nothing.

    It is the weighted loss of a mixture's routers, and what the model returns as its loss without labels.

    Raises:
        ValueError: the weight of the routers' loss is unknown.
    """
    routers: Tensor | None = outputs.get("aux_loss")
    own: Tensor | None = None if has_labels else outputs.get("loss")
    if routers is not None:
        routers = _weight_of_routers(model) * routers
    if own is None or routers is None:
        return routers if own is None else own
    return own + routers.to(own.device)


def _weight_of_routers(model: Any) -> float:
    for owner in (model, model.config, model.config.get_text_config()):
        for name in _ROUTER_WEIGHTS:
            if isinstance(weight := getattr(owner, name, None), float | int):
                return weight
    raise ValueError(
        f"{type(model).__name__} has a loss of its routers, whose weight is unknown: expected one of "
        f"{', '.join(_ROUTER_WEIGHTS)}. Omit output_router_logits to train without it."
    )
