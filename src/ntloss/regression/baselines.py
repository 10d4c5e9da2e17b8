"""What a user would try first: the median, ridge on words, trees, a sentence encoder, each in seconds.

All of them are fitted to answers on the scale on which the language model writes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from sklearn.svm import SVR

from ntloss.regression.columns import NUMBERS, Numbers
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.questions import Questions

MEDIAN = "the median answer"
RIDGE = "ridge on words"
TREES = "boosted trees"
ENCODER = "sentence encoder and SVR"
_CATEGORIES = 30  # values of a column of texts up to which trees see it
_LEAVES = (5, 20)  # rows of a leaf, at least: a fiftieth of the training rows between these
USUAL_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
# The file in which sentence-transformers says how states become a vector, and two of the ways.
_POOLING, _MEAN, _FIRST = "1_Pooling/config.json", "pooling_mode_mean_tokens", "pooling_mode_cls_token"
_PENALTIES = np.logspace(-2, 2, 5)


class Baseline(NamedTuple):
    """A simple model's predictions of held-out rows."""

    predicted: Numbers
    seconds: float


def fit_simple_models(
    questions: Questions,
    table: pd.DataFrame,
    texts: Sequence[str],
    answers: Numbers,
    form: AnswerFormat,
    train: slice,
    held_out: slice,
    encoder: str | None = None,
    seed: int = 0,
) -> tuple[dict[str, Baseline], dict[str, str]]:
    """Fit simple models to the training rows, and predict the held-out ones.

    Args:
        questions: which columns are read.
        table: the rows.
        texts: `[rows]`, the rows as questions.
        answers: `[rows]`.
        form: how the language model writes answers, whose scale the simple models have, too.
        train: the training rows.
        held_out: the rows that are predicted.
        encoder: folder or name of a sentence encoder. Default: one in the cache of the Hugging Face hub.
        seed: of the trees.

    Returns:
        The models, and for each one that cannot be fitted to such rows the reason.

    Raises:
        ValueError: there is no such encoder.
    """
    table = questions.table(table)
    words = [c for c, column in questions.columns.items() if column.kind != NUMBERS or not column.plain]
    scaled = form.scaled(answers)
    models: dict[str, Callable[[], Numbers]] = {
        MEDIAN: lambda: np.full(len(scaled[held_out]), np.median(scaled[train]))
    }
    found, failed = dict[str, Baseline](), dict[str, str]()
    if words:
        models[RIDGE] = lambda: _ridge(texts, scaled, train, held_out)
    chosen = find_cached_encoder() if encoder is None and words else encoder
    if words and chosen is not None:
        models[ENCODER] = lambda: _encoded(chosen, texts, scaled, train, held_out)
    elif words:
        failed[ENCODER] = (
            f"none is in the cache. To compare: `hf download {USUAL_ENCODER}`, and the same fit with "
            f"`--compare {USUAL_ENCODER}` (in Python, compare=...)"
        )
    elif chosen is not None:
        failed[ENCODER] = "no column holds texts"
    if numbers := questions.numbers(table):
        models[TREES] = lambda: _trees(table, numbers, scaled, train, held_out, seed)
    for name, predict in models.items():
        start = time.perf_counter()
        try:
            found[name] = Baseline(form.unscaled(predict()), time.perf_counter() - start)
        except Exception as error:  # the encoder of a cache may be any
            is_expected = encoder is None if name == ENCODER else isinstance(error, TypeError | ValueError)
            if not is_expected:
                raise
            failed[name] = str(error).partition("\n")[0]
    return found, failed


def _ridge(texts: Sequence[str], answers: Numbers, train: slice, held_out: slice) -> Numbers:
    """Fit ridge on words and letters, whose penalty five parts of the training rows choose."""
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    letters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 4))
    ridge = RidgeCV(_PENALTIES, scoring="neg_mean_absolute_error", cv=5)
    model = make_pipeline(make_union(words, letters), ridge).fit(texts[train], answers[train])
    predicted: Numbers = model.predict(texts[held_out])
    return predicted


def _trees(
    table: pd.DataFrame,
    numbers: dict[str, Numbers],
    answers: Numbers,
    train: slice,
    held_out: slice,
    seed: int,
) -> Numbers:
    """Fit boosted trees with the better of two losses, which five parts of the training rows choose.

    The absolute error is what counts, but its trees stay at the median where most answers are one number.
    """
    texts = {c: table[c].map(str) for c in table.columns if c not in numbers}
    kinds = [c for c, column in texts.items() if column[table[c].notna()].nunique() <= _CATEGORIES]
    table = table.assign(**texts, **numbers)[[*kinds, *numbers]]
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    leaf = int(np.clip(len(answers[train]) // 50, *_LEAVES))
    trees = HistGradientBoostingRegressor(
        min_samples_leaf=leaf,
        categorical_features=[True] * len(kinds) + [False] * len(numbers),
        random_state=seed,
    )
    search = GridSearchCV(
        make_pipeline(make_column_transformer((encoder, kinds), remainder="passthrough"), trees),
        {"histgradientboostingregressor__loss": ["absolute_error", "squared_error"]},
        scoring="neg_mean_absolute_error",
        cv=5,
    )
    predicted: Numbers = search.fit(table.iloc[train], answers[train]).predict(table.iloc[held_out])
    return predicted


def _encoded(encoder: str, texts: Sequence[str], answers: Numbers, train: slice, held_out: slice) -> Numbers:
    known = answers[train, None]
    vectors = sentence_vectors(encoder, [*texts[train], *texts[held_out]])
    scaler = StandardScaler().fit(known)
    svr = SVR().fit(vectors[: len(known)], scaler.transform(known).ravel())
    predicted: Numbers = scaler.inverse_transform(svr.predict(vectors[len(known) :])[:, None]).ravel()
    return predicted


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
    longest = min(256, tokenizer.model_max_length)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    vectors = []
    for first in range(0, len(texts), 32):
        some = [*texts[first : first + 32]]
        batch = tokenizer(
            some, padding=True, padding_side="right", truncation=True, max_length=longest, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = states[:, 0] if modes == {_FIRST} else (states * mask).sum(1) / mask.sum(1)
        vectors.append(torch.nn.functional.normalize(pooled).double().numpy())
    return np.concatenate(vectors)
