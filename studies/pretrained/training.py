"""Train an arm of the study on some rows, and answer others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, get_criterion
from studies.pretrained.answers import AnswerTree
from studies.pretrained.model import Rows, UpperLayers


class Settings(NamedTuple):
    """What a run is trained with.

    Args:
        arm: An arm of the study.
        steps: Number of updates.
        rate: Largest learning rate.
        seed: Seed of the order of the rows.
        criterion: Criterion of a number loss, by its name.
        weight: Its λ.
        normalize_by: What its term is divided by.
        decays: Whether λ falls to 0, linearly.
    """

    arm: str
    steps: int
    rate: float
    seed: int
    criterion: str | None = None
    weight: float = 0.0
    normalize_by: str = "items"
    decays: bool = False


def draw(pool: Sequence[int], seed: int, count: int) -> list[int]:
    """Draw training rows from a pool."""
    return np.random.default_rng([seed, count]).choice(pool, count, replace=False).tolist()


def fit(
    model: UpperLayers,
    heads: Sequence[nn.Parameter],
    lengths: Mapping[int, int],
    loss: Callable[[int, list[int]], Tensor],
    settings: Settings,
    training: Mapping[str, Any],
) -> list[float]:
    """Train the upper layers, and further weights, from the pretrained weights.

    Args:
        model: The model.
        heads: Further weights.
        lengths: Length of each row that is trained on; rows of similar length share a batch.
        loss: Returns the loss of a step, from its place and the rows of its batch.
        settings: Number of steps, learning rate and seed.
        training: As in `study.yaml`.

    Returns:
        The losses of the steps.
    """
    torch.manual_seed(settings.seed)
    model.reset()
    weights = [*model.trained, *heads]
    betas, decay = tuple(training["betas"]), training["weight_decay"]
    optimizer = torch.optim.AdamW(weights, settings.rate, betas=betas, weight_decay=decay)
    warmup = round(training["warmup"] * settings.steps)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, settings.steps)
    batches: list[list[int]] = []
    losses = []
    for step in range(settings.steps):
        batches = batches or _batches(lengths, training["batch"])
        value = loss(step, batches.pop())
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(weights, training["clip"])
        optimizer.step()
        schedule.step()
        losses.append(float(value.detach()))
    return losses


def _batches(lengths: Mapping[int, int], size: int) -> list[list[int]]:
    """Shuffle rows into batches; rows of similar length share one, which leaves little padding."""
    places = list(lengths)
    order = [places[k] for k in torch.randperm(len(places))]
    order = order[: max(1, len(order) // size) * size]
    groups = [order[k : k + 4 * size] for k in range(0, len(order), 4 * size)]
    sorted_rows = [sorted(group, key=lengths.__getitem__) for group in groups]
    batches = [group[k : k + size] for group in sorted_rows for k in range(0, len(group), size)]
    return [batches[k] for k in torch.randperm(len(batches))]


class Trainer:
    """Trains the upper layers on rows with answers.

    Args:
        model: The model.
        tree: The tree of answers.
        rows: All rows of a task.
        answers: The answer of each row, whole numbers.
        training: Batch size, share of warm-up steps, betas, weight decay and clipping, as in `study.yaml`.
    """

    def __init__(
        self, model: UpperLayers, tree: AnswerTree, rows: Rows, answers: Tensor, training: dict[str, Any]
    ):
        self.model, self.tree, self.rows, self.answers, self.training = model, tree, rows, answers, training
        self.vocabulary = NumberVocabulary.from_tokenizer(model.tokenizer)
        self.chains = [tree.chain(int(answer)) for answer in answers]
        self.head = nn.Linear(model.frozen.width, 1)
        self.center = self.scale = 0.0

    def fit(self, places: Sequence[int], settings: Settings) -> list[float]:
        """Train from the pretrained weights; return the losses of the steps."""
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        answers = self.answers[list(places)].double()
        self.center, self.scale = float(answers.mean()), float(answers.std())
        loss = self._loss(settings)
        lengths = {place: len(self.rows.prompts[place]) for place in places}
        heads = [*self.head.parameters()]
        return fit(self.model, heads, lengths, lambda _, chosen: loss(chosen), settings, self.training)

    def _loss(self, settings: Settings) -> Any:
        if settings.arm == "head":
            return lambda chosen: F.l1_loss(self._standard(self._headed(chosen)), self._targets(chosen))
        if settings.arm == "raft":
            return self._raft
        criterion = get_criterion(settings.criterion) if settings.criterion else None
        loss = NTLCrossEntropyLoss(self.vocabulary, criterion, weight=settings.weight)
        return lambda chosen: loss(*self._tokens(chosen))

    def _tokens(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits `[rows, tokens, vocab]` and labels `[rows, tokens]` of the answers."""
        nodes, labels = zip(*(self.chains[place] for place in chosen), strict=True)
        hidden = self.model(self.rows, chosen, torch.tensor(nodes, dtype=torch.long))
        return self.model.head(hidden), torch.tensor(labels)

    def _raft(self, chosen: Sequence[int]) -> Tensor:
        """Return the squared error of the mean over all answers, standardized."""
        probs = self.tree.log_probs(self.logits(chosen)).exp()
        mean = probs @ self.tree.values.to(probs.dtype)
        return F.mse_loss(self._standard(mean), self._targets(chosen))

    def _targets(self, chosen: Sequence[int]) -> Tensor:
        return self._standard(self.answers[list(chosen)]).float()

    def _standard(self, numbers: Tensor) -> Tensor:
        return (numbers - self.center) / self.scale

    def _headed(self, chosen: Sequence[int]) -> Tensor:
        none = torch.empty(len(chosen), 0, dtype=torch.long)
        hidden = self.model(self.rows, chosen, none)[:, 0]
        return self.head(hidden).squeeze(-1) * self.scale + self.center

    def logits(self, chosen: Sequence[int], rows: Rows | None = None) -> Tensor:
        """Return the logits of the answers' tokens at all nodes, `[rows, nodes, columns]`."""
        hidden = self.model(rows or self.rows, chosen, self.tree.all_nodes.expand(len(chosen), -1))
        return self.model.head(hidden, self.tree.columns)

    @torch.no_grad()
    def predict(self, places: Sequence[int], arm: str, batch: int = 50, rows: Rows | None = None) -> Tensor:
        """Return the logits of rows, `[rows, nodes, columns]`; of a head its predictions, `[rows]`."""
        read = self._headed if arm == "head" else functools.partial(self.logits, rows=rows)
        return torch.cat([read(places[k : k + batch]) for k in range(0, len(places), batch)])


def ridge(texts: Sequence[str], answers: Tensor, asked: Sequence[str]) -> Tensor:
    """Predict by ridge regression on TF-IDF of words and pairs of words."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = Ridge().fit(words.fit_transform(texts), answers.double().numpy())
    return torch.from_numpy(model.predict(words.transform(asked)))


def trees(columns: pd.DataFrame, answers: Tensor, asked: pd.DataFrame) -> Tensor:
    """Predict by gradient-boosted trees, tuned by cross-validation on the training rows."""
    model = HistGradientBoostingRegressor(
        loss="absolute_error", categorical_features="from_dtype", random_state=0
    )
    tried = {
        "learning_rate": [0.05, 0.1, 0.2],
        "max_iter": [100, 300],
        "max_leaf_nodes": [7, 31],
        "min_samples_leaf": [5, 20],
    }
    search = GridSearchCV(model, tried, scoring="neg_mean_absolute_error", cv=5)
    return torch.from_numpy(search.fit(columns, answers.double().numpy()).predict(asked))
