"""The settings of the groups `model_args` and `weights`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ntl.settings import Settings, setting

Family = StrEnum("Family", "t5 decoder_only pretrained")
NumberEncoding = StrEnum("NumberEncoding", "none none_regression_head rt xval")
TokenizerType = StrEnum("TokenizerType", "digits auto")
AnswerWidth = StrEnum("AnswerWidth", "plain padded")
AnswerScale = StrEnum("AnswerScale", "plain log")
HeadLoss = StrEnum("HeadLoss", "squared absolute")
LossFunction = StrEnum("LossFunction", "mse mae huber")


@dataclass
class ModelArgs(Settings):
    """Which model to use, and how it reads and writes numbers: by default T5 with digits as tokens."""

    group = "model_args."

    name: str = setting(
        "vanilla_t5", "a name for the model, which is part of the name of the output folder", "nothing"
    )
    family: Family = setting(
        Family.t5, "the kind of model; pretrained: what the model's own configuration says"
    )
    number_encoding: NumberEncoding = setting(NumberEncoding.none, "how numbers are encoded, if not as text")
    own_encoding: str | None = setting(
        None,
        "an encoding of your own for T5, module:function, in place of number_encoding; the module is a file "
        "in the folder of the command, see docs/lab.md",
    )
    tokenizer_type: TokenizerType = setting(
        TokenizerType.digits, "digits: each digit is a token; auto: the tokenizer is left as it is"
    )
    number_format: AnswerWidth = setting(
        AnswerWidth.plain,
        "padded: answers have one length, with leading zeros, signs and decimals, and are decoded as such; a "
        "regression head writes no text, and ignores this",
    )
    number_width: int | None = setting(
        None, "padded: digits before the point; null: as many as the training answers need"
    )
    number_places: int | None = setting(None, "padded: digits after the point; null: as many as are needed")
    number_digits: int | None = setting(
        None,
        "padded: how precisely answers are written; 3 keeps three significant digits of their standard "
        "deviation; null: all digits",
        least=1,
    )
    number_scale: AnswerScale = setting(
        AnswerScale.plain, "padded; log: the answers' logarithms to base 10 are written"
    )
    model_name_or_path: str | None = setting(
        "google-t5/t5-small", "a folder or a name on the hub; null: trained from scratch, with config_name"
    )
    tokenizer_name_or_path: str | None = setting(
        None, "null: the model's; from scratch, the small one that ships with the lab"
    )
    config_name: str = setting(
        "t5-small",
        "the shape of a model from scratch: one that ships with the lab, or a folder with config.json",
    )
    config_overrides: dict[str, Any] | None = setting(
        {}, "changes of this shape, such as {dropout_rate: 0.0}"
    )
    separator: str | None = setting(
        None,
        "text between question and answer of a decoder-only model; null: a line break, unless the question "
        "ends in white space; with chat_template, the beginning of the assistant's turn, and null is nothing",
    )
    chat_template: bool = setting(False, "of instruct models: the question is the user's turn")
    head_loss: HeadLoss = setting(
        HeadLoss.squared, "error that a regression head minimizes, on standardized numbers"
    )
    log_scale_embeddings: bool = setting(
        True, "embeddings of rt and xval, and predictions of xval and a regression head, use logarithms"
    )
    # The published keys of the loss, which become the group `loss`: see `ntl.losses.choose_loss`.
    number_token_loss: bool = setting(False, "published key: add a number token loss", "nothing")
    number_token_loss_weight: float = setting(0.3, "published key: λ", "nothing")
    number_token_loss_with_wasserstein: bool = setting(
        False, "published key: true is NTL-WAS; false is what number_token_loss_function names", "nothing"
    )
    number_token_loss_function: LossFunction | None = setting(None, "published key; null: mse", "nothing")
    gaussian_label_smoother: bool = setting(False, "published key: smooth the targets of digits", "nothing")
    label_smoother_sigma: float = setting(
        1.0, "published key: standard deviation of these targets", "nothing"
    )

    @property
    def encoding(self) -> str:
        """How texts become tokens: `digits`, `auto`, `rt`, `xval` or `own`, see `ntl.encodings`."""
        if self.own_encoding is not None and self.head == "language":
            return "own"
        of_numbers = str(self.number_encoding)
        return of_numbers if of_numbers in ("rt", "xval") else str(self.tokenizer_type)

    @property
    def head(self) -> str:
        """What the model answers with: `language`, or `regression` for one number instead of text."""
        return "regression" if self.number_encoding == "none_regression_head" else "language"


@dataclass
class Weights(Settings):
    """Which weights are trained, by default all of them, and how."""

    group = "weights."

    trained_layers: int | None = setting(
        None,
        "number of layers that are trained, from the top (of the decoder), with the norm behind them; "
        "null: all",
    )
    train_head: bool = setting(False, "with trained_layers: train the output head, too")
    lora: dict[str, Any] | None = setting(
        {}, "arguments of peft's LoraConfig, such as {r: 8, lora_alpha: 16}; merged into the saved model"
    )
    head_learning_rate: float | None = setting(
        None, "learning rate of a regression head; null: training_args.learning_rate"
    )
