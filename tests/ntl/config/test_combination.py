from __future__ import annotations

import pytest

from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
PADDED, MEDIAN = "model_args.number_format=padded", "evaluation.read=[greedy,median]"
WITHOUT_DIGITS = {
    "rt": "number_encoding=rt",
    "xval": "number_encoding=xval",
    "vanilla_t5_regression_head": "a regression head",
}


@pytest.mark.parametrize("model", WITHOUT_DIGITS)
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (PADDED, "padded needs a model that writes numbers as text, and {} does not"),
        (MEDIAN, "median] needs the distribution of a number .* and {} has none"),
    ],
)
def test_settings_that_need_digits_are_an_error_for_a_model_without_them(model, override, expected):
    with pytest.raises(UserError, match=expected.format(WITHOUT_DIGITS[model])):
        plan_runs([*SCRATCH, f"model_args={model}", override])


@pytest.mark.parametrize("model", ["rt", "xval"])
def test_an_encoding_of_t5_is_an_error_for_a_decoder(model):
    with pytest.raises(UserError, match=f"family=decoder_only does not support {WITHOUT_DIGITS[model]}"):
        plan_runs([*SCRATCH, f"model_args={model}", "model_args.family=decoder_only"])


@pytest.mark.parametrize("model", ["xval", "vanilla_t5_regression_head"])
@pytest.mark.parametrize("loss", ["loss=ntl_was", "model_args.number_token_loss=true"])
def test_a_model_without_number_tokens_is_not_combined_with_a_criterion(model, loss):
    with pytest.raises(UserError, match=f"needs a token for each .* and {WITHOUT_DIGITS[model]} has none"):
        plan_runs([*SCRATCH, f"model_args={model}", loss])


@pytest.mark.parametrize(
    "model", ["vanilla_t5_ntl", "decoder_only_ntl", "vanilla_t5 model_args.tokenizer_type=auto"]
)
def test_a_model_that_writes_digits_combines_a_loss_padded_answers_and_medians(model):
    (run,) = plan_runs(
        [*f"model_args={model} {PADDED} {MEDIAN}".split(), "model_args.model_name_or_path=null"]
    )
    assert (run.model.number_format, run.generation.quantile_readings) == ("padded", ("median",))
