"""What models share: they are built from scratch or from a checkpoint, which has to fit the settings.

The `config.ntl` of each of the lab's models holds its encoding, its head and everything else that answers
depend on, such as the statistics of the training answers. It is saved with the model. So a run's folder is
sufficient to load the model, and a checkpoint is never used with the wrong encoding.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ntl.encodings.digits import load_tokenizer, split_digits
from ntl.encodings.locate import WEIGHTS, loading, locate
from ntl.errors import UserError, describe, unknown_key
from ntl.settings import HEAD, ModelArgs, Weights
from ntloss.writing import Lora, UpperLayers

IGNORE = -100
"""Label of positions without a loss."""
PACKED = "packed"
"""Entry of an encoded row whose batch is one row, see `LanguageModel.pack`."""
Row = Mapping[str, Any]
CHECKPOINT_KEY = "model_args.model_name_or_path"  # the user's name for it
_FILES = "a folder with config.json and model.safetensors"
_INSTEAD = (
    "pass model_args.model_name_or_path=null to train from scratch, or a folder: `make model` in the "
    "repository of this project puts SmolLM2 into .models/smollm2"
)
# Configuration entries that describe the vocabulary or the run instead of the architecture.
NOT_SHAPE = (
    "architectures", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id", "ntl", "pad_token_id",
    "torch_dtype", "transformers_version", "vocab_size", "_name_or_path",
)  # fmt: skip
SHAPES = Path(__file__).with_name("shapes.yaml")
# Arguments that transformers reads although `to_dict()` may omit them.
_ALWAYS_KNOWN = ("num_labels", "tie_word_embeddings", "rope_theta", "rope_scaling")


class ModelSource(NamedTuple):
    """What a model is built from, except for its weights."""

    settings: ModelArgs
    tokenizer: PreTrainedTokenizerFast  # splits digits, unless the encoding uses it unchanged
    config: PreTrainedConfig  # of the checkpoint or, for a model from scratch, of its shape


class AnsweringModel(Protocol):
    """A model for training and evaluation, with what turns texts into its batches and its output into texts.

    Attributes:
        model: The model itself.
        tokenizer: Its tokenizer.
        number_ids: The tokens that write numbers; empty if it writes none.
        frozen: The layers that are not trained, or None.
        lora: The adapters, or None.
        answer_format: What writes padded answers; None of plain ones, and of models that write no text.
        head: The layer that predicts the number of a regression head; other models have none.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    number_ids: Sequence[int] = ()
    frozen: UpperLayers | None = None
    lora: Lora | None = None
    answer_format: Any = None
    head: Any = None

    def fit(self, answers: Iterable[str]) -> None:
        """Compute what depends on the training answers: statistics that standardize, or the number format.

        A model that has them from an earlier run keeps them.
        """

    def write(self, answers: Sequence[str]) -> list[str]:
        """Write answers for labels."""
        return [*answers]

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as columns of token ids (and numbers), without padding, one entry per pair."""

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Pad encoded rows into a batch, which includes `labels`: the trainer's data collator."""

    def check_packing(self, rows: Sequence[Row]) -> None:
        """Check that a batch of rows can be packed; only a decoder-only language model's can be."""
        raise UserError("training_args.packed=true needs a decoder-only language model. Omit it.")

    def answer(self, questions: Sequence[str], beams: int, max_new_tokens: int) -> list[str]:
        """Answer a batch of questions with texts (a regression head formats its number)."""


def build(settings: ModelArgs, weights: Weights | None = None, seed: int = 42) -> AnsweringModel:
    """Build the model that the settings describe, by default with the checkpoint's tokenizer, on the CPU."""
    weights, is_head = weights or Weights(), settings.number_encoding == HEAD
    config = _read_config(settings)
    own, checkpoint = settings.tokenizer_name_or_path, settings.model_name_or_path
    key = "model_args.tokenizer_name_or_path" if own or checkpoint is None else CHECKPOINT_KEY
    tokenizer = load_tokenizer(own or checkpoint, key)
    if config.is_encoder_decoder:
        needed = "a padding token, and an end token after each text, as T5's has"
        is_complete = tokenizer.pad_token_id is not None
        is_complete = is_complete and tokenizer("1")["input_ids"][-1] == tokenizer.eos_token_id
    else:
        needed, is_complete = "an end token, which ends answers", tokenizer.eos_token_id is not None
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is always masked
    if not is_complete:
        raise UserError(f"the tokenizer does not have {needed}. Use another tokenizer.")
    if settings.encoding != "auto":
        tokenizer = split_digits(tokenizer)
    module, name = "language_model", "LanguageModel"
    if is_head:
        module, name = "regression_head", "RegressionHead"
    elif settings.encoding == "xval":
        module, name = "xval", "Xval"
    torch.manual_seed(seed)
    kind = getattr(import_module(f"ntl.models.{module}"), name)  # which imports this module
    built: Any = kind(ModelSource(settings, tokenizer, config))
    heads = [built.head] if is_head else []
    try:
        if weights.trained_layers is not None:
            built.frozen = UpperLayers(built.model, weights.trained_layers, heads)
        if weights.lora:
            built.lora = Lora(built.model, weights.lora, heads)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"weights.{key}={value}" for key, value in vars(weights).items())
        raise UserError(f"{given} cannot be used: {error}") from error
    return built


def _read_config(settings: ModelArgs) -> PreTrainedConfig:
    """Read the configuration of the checkpoint or, from scratch, of the shape, and check that it fits."""
    if settings.model_name_or_path is None:
        arguments = {**get_shape(settings.config_name), **(settings.config_overrides or {})}
        config_class = type(AutoConfig.for_model(arguments.pop("model_type")))
        # transformers would silently accept unknown arguments, and build another model than requested.
        known = {*config_class().to_dict(), *config_class.attribute_map, *_ALWAYS_KNOWN}
        if unknown := [key for key in arguments if key not in known]:
            raise unknown_key("model_args.config_overrides.", unknown[0], sorted(known))
        try:
            config = config_class(**arguments)
        except Exception as error:  # of many types
            raise _unusable_shape(settings, error) from error
    else:
        expected = f"{_FILES}, or a name on the hub; {_INSTEAD}"
        with loading(CHECKPOINT_KEY, settings.model_name_or_path, expected):
            folder = locate(settings.model_name_or_path, WEIGHTS)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    of_family = {"t5": True, "decoder_only": False}.get(settings.family, config.is_encoder_decoder)
    needs_t5 = config.is_encoder_decoder and (settings.number_encoding in (HEAD, "xval"))
    if config.is_encoder_decoder != of_family or (needs_t5 and config.model_type != "t5"):
        raise UserError(
            f"a {config.model_type} cannot be used with model_args.family={settings.family} and "
            f"number_encoding={settings.number_encoding}: xVal and a regression head need a T5 or a "
            "decoder-only model. Choose another model, or other model_args."
        )
    asked = _describe(settings)
    trained: dict[str, Any] = getattr(config, "ntl", None) or asked
    for key in (key for key in asked if trained.get(key) != asked[key]):
        raise UserError(
            f"{CHECKPOINT_KEY}={settings.model_name_or_path} was trained with {key}={trained.get(key)}; "
            f"expected {asked[key]}, as in model_args. Choose the model_args that it was trained with."
        )
    return config


def _unusable_shape(settings: ModelArgs, error: Exception) -> UserError:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return UserError(
        f"model_args.config_name={settings.config_name} with "
        f"model_args.config_overrides={settings.config_overrides} cannot be built ({reason})."
    )


def get_shape(name: str) -> dict[str, Any]:
    """Return the arguments of an architecture.

    Args:
        name: A name in shapes.yaml, or a folder that holds config.json.

    Returns:
        Arguments of transformers' configuration, including `model_type`.
    """
    shapes: Any = OmegaConf.to_container(OmegaConf.load(SHAPES))
    if name in shapes:
        return shapes[name]
    try:
        config = json.loads((Path(name).expanduser() / "config.json").read_text("utf-8"))
        return {"model_type": config["model_type"]} | {k: v for k, v in config.items() if k not in NOT_SHAPE}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"the architecture {name!r} is unknown ({describe(error)}); expected one of {', '.join(shapes)}, "
            "or a folder that holds a model's config.json."
        ) from None


def _describe(settings: ModelArgs) -> dict[str, Any]:
    """Return the part of `config.ntl` that follows from the settings."""
    is_head = settings.number_encoding == HEAD
    found: dict[str, Any] = {"encoding": settings.encoding, "head": "regression" if is_head else "language"}
    found["number_format"] = str(settings.number_format)
    if settings.number_format == "padded":
        found["number_scale"] = str(settings.number_scale)
        if settings.number_digits is not None:
            found["number_digits"] = settings.number_digits
    if settings.family != "t5":
        found |= {"separator": settings.separator, "chat_template": settings.chat_template}
    if settings.encoding in ("rt", "xval") or is_head:
        found["log_scale"] = settings.log_scale_embeddings
    return found


def build_model(model_class: Any, source: ModelSource, new: Sequence[str] = (), **described: Any) -> Any:
    """Build a model from scratch, or load it from a checkpoint, in float32, on the CPU and in training mode.

    Embeddings of pretrained models are enlarged to fit the tokenizer.

    Args:
        model_class: A class with transformers' interface.
        source: What it is built from.
        new: Prefixes of the names of weights that a pretrained model may lack.
        **described: Additional entries of `config.ntl`: ids of tokens, and None for what training adds.

    Returns:
        An instance of `model_class` or, of an auto class, the model that it selects.
    """
    settings, tokenizer, config = source
    is_new = getattr(config, "ntl", None) is None
    if is_new:
        config.ntl = _describe(settings) | described
    if settings.model_name_or_path is None:
        special = ("pad_token_id", "eos_token_id", "bos_token_id")
        config.update({"vocab_size": len(tokenizer), **{key: getattr(tokenizer, key) for key in special}})
        if config.model_type == "t5":
            config.decoder_start_token_id = tokenizer.pad_token_id
        try:
            # Auto classes select the model by its configuration.
            return getattr(model_class, "from_config", model_class)(config).train()
        except Exception as error:  # such as that of a Mamba with a regression head
            raise _unusable_shape(settings, error) from error
    with loading(CHECKPOINT_KEY, settings.model_name_or_path, _FILES):
        model, found = model_class.from_pretrained(
            config.name_or_path,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
        )
    missing = [key for key in found["missing_keys"] if not (is_new and key.startswith(tuple(new)))]
    missing += [key[0] if isinstance(key, tuple) else key for key in found["mismatched_keys"]]
    if missing:
        raise UserError(
            f"{CHECKPOINT_KEY}={settings.model_name_or_path} does not fit the model: it lacks {len(missing)} "
            f"weights, such as {min(missing)}. Choose the model_args that it was trained with."
        )
    if is_new and len(tokenizer) > model.config.vocab_size:
        model.resize_token_embeddings(len(tokenizer))
    ids = {key: value for key, value in described.items() if value is not None}
    if len(tokenizer) > model.config.vocab_size or not ids.items() <= model.config.ntl.items():
        raise UserError(
            f"{CHECKPOINT_KEY}={settings.model_name_or_path} has {model.config.vocab_size} tokens, the "
            f"tokenizer {len(tokenizer)}; expected both from the same run, with the same ids. Omit "
            "model_args.tokenizer_name_or_path."
        )
    return model.train()


def make_prompts(source: ModelSource, encoding: Any) -> Callable[[Sequence[str]], list[list[int]]]:
    """Make the function that encodes questions for a decoder-only model.

    A prompt is a question or, with a chat template, a conversation up to the assistant's turn; the separator
    follows. Its default is nothing in a chat or after white space, and otherwise a line break or, if the
    tokenizer has none, its end token.
    """
    settings, tokenizer, _ = source
    if settings.chat_template and tokenizer.chat_template is None:
        raise UserError(
            "model_args.chat_template=true, but the tokenizer has no chat template; expected that of an "
            "instruct model. Omit it."
        )
    plain = partial(encoding.encode, special_tokens=False)

    given = None if settings.separator is None else settings.separator.replace("\\n", "\n")
    if settings.chat_template:

        def chats(questions: Sequence[str]) -> list[list[int]]:
            turns = [[{"role": "user", "content": question}] for question in questions]
            begun: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            return plain([chat + (given or "") for chat in begun])

        return chats
    line_break = plain(["\n"])[0]
    if not line_break or tokenizer.unk_token_id in line_break or "\n" not in encoding.decode([line_break])[0]:
        line_break = [tokenizer.eos_token_id]
    separator = line_break if given is None else plain([given])[0]
    first = tokenizer("1")["input_ids"][:1]
    prefix = first if first == [tokenizer.bos_token_id] else []

    def prompts(questions: Sequence[str]) -> list[list[int]]:
        ends = [given is None and question[-1:].isspace() for question in questions]
        rows = zip(plain(questions), ends, strict=True)
        return [[*prefix, *ids, *([] if ends_itself else separator)] for ids, ends_itself in rows]

    return prompts


def check_lengths(rows: Sequence[Sequence[int]], model: PreTrainedModel) -> None:
    """Raise a UserError if a row of token ids is longer than the model can read."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is not None and (longest := max(map(len, rows), default=0)) > most:
        raise UserError(
            f"a question and its answer take {longest} tokens; this model takes at most {most}. Choose "
            "another model, or increase max_position_embeddings in its configuration."
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Prepare a model for evaluation: no gradients and no dropout."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
