"""A run's settings as frozen dataclasses, independent of the configuration's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from ntl.config.rules import Rule, at_least, one_of
from ntloss import criterion_names

Family = Literal["t5", "decoder_only", "pretrained"]
NumberFormat = Literal["plain", "padded"]
Reading = Literal["greedy", "median", "mean"]
READINGS: tuple[Reading, ...] = get_args(Reading)
LOSS_OF_MODEL = "from_model_args"  # the value of loss.criterion that leaves the loss to model_args


@dataclass(frozen=True)
class ModelSettings:
    """Which model to use, and how it reads and writes numbers.

    Args:
        family: `t5` (encoder-decoder), `decoder_only` (Llama, Mamba, ...), or `pretrained`, where the
            checkpoint decides.
        encoding: `digits` makes every digit a token, `auto` uses the tokenizer unchanged, `rt` uses the
            Regression Transformer's tokens of digit and place, and `xval` uses one `[NUM]` token scaled by
            the value.
        head: `language`, or `regression` to predict one number instead of text.
        number_format: `plain` writes answers as they are. `padded` pads all answers to one length, with
            leading zeros, a sign if any training answer is negative, and as many decimals.
        number_width: Digits before the point of padded answers. None: as many as the training answers need.
        number_places: Digits after the point of padded answers. None: as many as the training answers need.
        checkpoint: Folder, `.gguf` file or hub name of pretrained weights. None trains from scratch.
        tokenizer: Folder or hub name. None uses the checkpoint's tokenizer or, from scratch, the small one
            that ships with the lab.
        config: Configuration arguments of a model trained from scratch, including `model_type` (`t5`,
            `llama`, `mamba`, ...).
        log_scale: Whether `rt` and `xval` embed numbers, and `xval` and a regression head predict them, on a
            log scale.
        seed: Random seed of the initial weights.
        trained_layers: Number of layers that are trained, from the top. None trains all weights.
    """

    family: Family = "t5"
    encoding: str = "digits"
    head: str = "language"
    number_format: NumberFormat = "plain"
    number_width: int | None = None
    number_places: int | None = None
    checkpoint: str | None = None
    tokenizer: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    log_scale: bool = True
    seed: int = 42
    trained_layers: int | None = None


@dataclass(frozen=True)
class LossSettings:
    """Which loss to minimize in addition to cross-entropy, or in place of it at number tokens."""

    # a name from ntloss.criterion_names(), as in loss=ce loss.criterion=smmd; null: cross-entropy alone
    criterion: Annotated[str, one_of(*criterion_names(), LOSS_OF_MODEL)] | None = None
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the criterion, such as {sigma: 1.0}
    weight: Annotated[float, at_least(0)] = 0.3  # λ
    reweigh: bool = False  # whether probability on text costs more than the worst number
    mode: Literal["add", "replace"] = (
        "add"  # replace: the criterion replaces cross-entropy at number positions
    )
    # what the criterion is divided by: number tokens, as in the paper, or items, all labels, as cross-entropy
    normalize_by: Literal["numbers", "items"] = "numbers"
    label_smoothing: Annotated[
        float, Rule("a number of at least 0 and below 1", 0.1, lambda v: 0 <= v < 1)
    ] = 0.0


@dataclass(frozen=True)
class GenerationSettings:
    """How answers are decoded.

    Args:
        beams: Number of beams; 1 decodes greedily. xVal always decodes greedily.
        max_new_tokens: Maximum length of an answer in tokens.
        batch_size: Number of questions decoded at once.
        quantile_readings: Readings besides `greedy`, the decoded number: `median` and `mean`. They need
            quantiles of the model's distribution.
        interval: Share of the model's distribution between the two quantiles of an interval.
    """

    beams: int = 4
    max_new_tokens: int = 64
    batch_size: int = 64
    quantile_readings: tuple[str, ...] = ()
    interval: float = 0.9


@dataclass(frozen=True)
class RunSettings:
    """Everything that one run needs to know.

    Args:
        config: The composed configuration, as recorded in `run.json`.
        name: Name of the model.
        objective: Name of the model with its loss in tables and figures.
        model: Model settings.
        loss: Loss settings.
        generation: Decoding settings.
        samples: Number of examples of each test set that are answered. None: all.
        samples_during_training: Number of validation examples answered at each evaluation. None: all.
        data: Settings of the dataset, with its `name`.
        trainer: Arguments of transformers' `Seq2SeqTrainingArguments`.
        output_dir: Output folder.
        only_evaluate: Whether to evaluate a trained model without training.
        overwrite: Whether a run in the output folder is deleted.
        resume: Whether to continue the run in the output folder.
        checkpoint: Checkpoint to continue from. None: the latest one.
        state_cache_gb: Largest cache of the frozen layers' output, in GB; see `ModelSettings.trained_layers`.
        evaluation_name: Name of an evaluation's folder. None: made from its options.
    """

    config: Mapping[str, Any]
    name: str
    objective: str
    model: ModelSettings
    loss: LossSettings
    generation: GenerationSettings
    samples: int | None
    samples_during_training: int | None
    data: Mapping[str, Any]
    trainer: Mapping[str, Any]
    output_dir: Path
    only_evaluate: bool = False
    overwrite: bool = False
    resume: bool = False
    checkpoint: Path | None = None
    state_cache_gb: float = 10.0
    evaluation_name: str | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.data["name"])

    @property
    def seed(self) -> int:
        """Random seed of the weights, of dropout and of the order of the data."""
        return self.model.seed
