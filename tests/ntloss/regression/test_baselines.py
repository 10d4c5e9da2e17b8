"""The simple models beside `NumberRegressor`: a sentence encoder in the format of sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from regression_cases import make, reviews, rooms, save_tiny_encoder, save_tiny_model
from tolerances import assert_close
from transformers import AutoTokenizer, BertModel

from ntloss.regression.baselines import sentence_vectors

MEAN, FIRST = "pooling_mode_mean_tokens", "pooling_mode_cls_token"


@pytest.fixture
def folder(tmp_path):
    return save_tiny_encoder(tmp_path)


def say_pooling(folder, **modes):
    (folder / "1_Pooling").mkdir()
    known = {MEAN: False, FIRST: False, "word_embedding_dimension": 16}
    (folder / "1_Pooling/config.json").write_text(json.dumps({**known, **modes}))


@pytest.mark.parametrize("modes", [None, {MEAN: True}, {FIRST: True}])
def test_vectors_are_pooled_as_the_folder_says(folder, modes):
    if modes is not None:
        say_pooling(folder, **modes)
    texts = ["good 12", "very, very bad"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, sentence_vectors(str(folder), texts), strict=True):
        with torch.no_grad():
            (states,) = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        pooled = states[0] if modes == {FIRST: True} else states.mean(0)
        assert_close(vector, (pooled / pooled.norm()).double().numpy(), 1e-5)


def test_pooling_of_another_kind_and_folders_without_an_encoder_are_errors(folder):
    say_pooling(folder, pooling_mode_lasttoken=True)
    with pytest.raises(ValueError, match="lasttoken"):
        sentence_vectors(str(folder), ["good"])
    with pytest.raises(ValueError, match="nothing"):
        sentence_vectors(str(folder / "nothing"), ["good"])


@pytest.mark.parametrize("kind", [str, Path])
def test_the_report_has_a_sentence_encoder_if_one_is_given(folder, tmp_path_factory, kind):
    tiny = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    model = make(tiny, epochs=1, compare=kind(folder)).fit(*reviews(60))
    assert np.isfinite(model.report_["mae"]["sentence encoder and SVR"])


def test_texts_without_words_have_no_ridge_and_are_fitted(tmp_path, capsys):
    model = make(save_tiny_model(tmp_path), prompt="{text} = ", epochs=1, compare=True, verbose=True)
    _, answers = reviews(40)
    model.fit(["ab"[i % 2] for i in range(40)], answers)
    assert {*model.report_.index} == {"the median answer", "NumberRegressor"}
    assert "left out        ridge on words" in capsys.readouterr().out
    assert "ridge on words" in model.fit(*reviews(40)).report_.index


def test_an_encoder_is_left_out_with_a_reason_where_no_column_holds_texts(folder, tmp_path_factory, capsys):
    tiny = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    rows = np.arange(120).reshape(60, 2) % 31
    model = make(tiny, epochs=1, compare=folder, verbose=True).fit(rows, rows.sum(1))
    assert "sentence encoder and SVR" not in model.report_.index
    assert "sentence encoder and SVR" in capsys.readouterr().out


def test_columns_with_pandas_own_gaps_are_fitted_by_trees_as_others(tmp_path):
    table, prices = rooms(60)
    table["rooms"] = [None if i % 7 == 0 else i % 5 for i in range(60)]
    model = make(save_tiny_model(tmp_path), epochs=1, compare=True)
    error = model.fit(table, prices).report_["mae"]["boosted trees"]
    assert_close(model.fit(table.convert_dtypes(), prices).report_["mae"]["boosted trees"], error)


def test_numbers_that_the_prompt_does_not_name_are_left_to_no_model(tmp_path):
    table, prices = rooms(60)
    model = make(save_tiny_model(tmp_path), epochs=1, compare=True, prompt="{kind}: ")
    assert "boosted trees" not in model.fit(table, prices).report_.index
    model = make(save_tiny_model(tmp_path), epochs=1, compare=True, prompt="{kind} of {size}: ")
    assert "boosted trees" in model.fit(table, prices).report_.index


def test_trees_see_decimal_commas_prices_and_percentages(tmp_path):
    random = np.random.default_rng(0)
    size, share = random.random((2, 120)).round(3) * 100
    answers = 10 * size + share
    tiny = save_tiny_model(tmp_path)
    plain = pd.DataFrame({"size": size, "share": share})
    written = plain.assign(
        size=[f"€ {number:.1f}".replace(".", ",") for number in size], share=[f"{n:.1f}%" for n in share]
    )
    errors = [
        make(tiny, epochs=1, compare=True).fit(table, answers).report_["mae"]["boosted trees"]
        for table in (plain, written)
    ]
    assert_close(errors[1], errors[0])
