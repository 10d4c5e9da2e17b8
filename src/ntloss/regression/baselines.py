"""What a user would try first: the median, ridge on words, trees, a sentence encoder, each in seconds.

All of them are fitted to answers on the scale on which the language model writes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVR

from ntloss.regression.answers import AnswerFormat
from ntloss.regression.questions import NUMBERS, Numbers, Questions

MEDIAN = "the median answer"
RIDGE = "ridge on words"
TREES = "boosted trees"
ENCODER = "sentence encoder and SVR"
_CATEGORIES = 30  # values of a column of texts, a gap among them, up to which trees see it
_LEAVES = (5, 20)  # rows of a leaf, at least: a fiftieth of the training rows between these
USUAL_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
# The file in which sentence-transformers says how states become a vector, and two of the ways.
_POOLING, _MEAN, _FIRST = "1_Pooling/config.json", "pooling_mode_mean_tokens", "pooling_mode_cls_token"
_PENALTIES = np.logspace(-2, 2, 5)
_CHOICE = {"scoring": "neg_mean_absolute_error", "cv": 5}  # five parts of the training rows choose


class Baseline(NamedTuple):
    """A simple model's predictions of held-out rows."""

    predicted: Numbers
    seconds: float


def fit_simple_models(
    questions: Questions,
    table: pd.DataFrame,
    answers: Numbers,
    form: AnswerFormat,
    train: slice,
    held_out: slice,
    encoder: str | None = None,
    seed: int = 0,
) -> tuple[dict[str, Baseline], dict[str, str]]:
    """Fit simple models to the training rows of a table, and predict the held-out ones.

    The sentence encoder is a folder or name; by default, it is one in the cache of the Hugging Face hub.

    Returns:
        The models, and for each one that cannot be fitted to such rows the reason.

    Raises:
        ValueError: there is no such encoder.
    """
    texts, scaled = pd.Series(questions.write(table)), form.scaled(answers)
    models: dict[str, tuple[Any, Any]] = {MEDIAN: (DummyRegressor(strategy="median"), texts)}
    found, failed = dict[str, Baseline](), dict[str, str]()
    if any(column.kind != NUMBERS or not column.plain for column in questions.columns.values()):
        words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
        letters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 4))
        models[RIDGE] = make_pipeline(make_union(words, letters), RidgeCV(_PENALTIES, **_CHOICE)), texts
        if chosen := encoder or find_cached_encoder():
            svr = TransformedTargetRegressor(SVR(), transformer=StandardScaler())
            vectors = FunctionTransformer(partial(sentence_vectors, chosen))
            models[ENCODER] = make_pipeline(vectors, svr), texts
        else:
            failed[ENCODER] = (
                f"none is in the cache. To compare: `hf download {USUAL_ENCODER}`, and the same fit with "
                f"`--compare {USUAL_ENCODER}` (in Python, compare=...)"
            )
    elif encoder is not None:
        failed[ENCODER] = "no column holds texts"
    if numbers := questions.numbers(table):
        asked, kinds = questions.table(table), dict[str, Any]()
        for name, column in questions.columns.items():
            if column.kind != NUMBERS and len({*(cells := column.write(asked[name]))}) <= _CATEGORIES:
                kinds[name] = pd.Categorical(cells)
        leaf = int(np.clip(len(scaled[train]) // 50, *_LEAVES))
        trees = HistGradientBoostingRegressor(min_samples_leaf=leaf, random_state=seed)
        # The absolute error counts, but its trees stay at the median where most answers are one number.
        search = GridSearchCV(trees, {"loss": ["absolute_error", "squared_error"]}, **_CHOICE)
        models[TREES] = search, pd.DataFrame({**kinds, **numbers})
    for name, (model, rows) in models.items():
        start = time.perf_counter()
        try:
            predicted = model.fit(rows.iloc[train], scaled[train]).predict(rows.iloc[held_out])
            found[name] = Baseline(form.unscaled(predicted), time.perf_counter() - start)
        except Exception as error:  # the encoder of a cache may be any
            is_expected = encoder is None if name == ENCODER else isinstance(error, TypeError | ValueError)
            if not is_expected:
                raise
            failed[name] = str(error).partition("\n")[0]
    return found, failed


def find_cached_encoder() -> str | None:
    """Return the folder of a sentence encoder in the cache of the Hugging Face hub, None if there is none."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = [
        file.parents[1] for file in sorted(Path(HF_HUB_CACHE).glob(f"models--*/snapshots/*/{_POOLING}"))
    ]
    usual = [folder for folder in folders if USUAL_ENCODER.replace("/", "--") in str(folder)]
    return str((usual or folders)[0]) if folders else None


def sentence_vectors(encoder: str, texts: Sequence[str]) -> Numbers:
    """Return a sentence encoder's vectors of length 1, `[texts, width]`.

    Args:
        encoder: a folder of sentence-transformers or its name on the hub, which says how the states of tokens
            become a vector; or any other encoder of transformers, whose states are averaged.
        texts: of which the first 256 tokens are read.

    Raises:
        ValueError: there is no such encoder, or its vectors are neither averages nor states of first tokens.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.hub import cached_file

    try:
        folder = str(Path(encoder).expanduser()) if Path(encoder).expanduser().is_dir() else encoder
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
        file = cached_file(folder, _POOLING, _raise_exceptions_for_missing_entries=False)
    except Exception as error:  # the hub's are of several libraries
        raise ValueError(
            f"compare={encoder!r}: expected the folder or name of a sentence encoder ({error})"
        ) from None
    given = {} if file is None else json.loads(Path(file).read_text("utf-8"))
    modes = {name for name, is_used in given.items() if name.startswith("pooling_mode_") and is_used is True}
    if not modes <= {_MEAN, _FIRST} or len(modes) > 1:
        raise ValueError(f"compare={encoder!r}: expected {_MEAN} or {_FIRST} in {file}, given {modes}")
    longest, vectors = min(256, tokenizer.model_max_length), []
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    for first in range(0, len(texts), 32):
        some = [*texts[first : first + 32]]
        batch = tokenizer(
            some, padding=True, padding_side="right", truncation=True, max_length=longest, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        vectors.append(states[:, 0] if modes == {_FIRST} else (states * mask).sum(1) / mask.sum(1))
    found: Numbers = torch.nn.functional.normalize(torch.cat(vectors)).double().numpy()
    return found
