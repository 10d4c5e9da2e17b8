"""Every snippet of the pages on trainers runs as it is, and trains with a number term."""

from dataclasses import dataclass
from typing import Any

import pytest
import trainer_cases as cases
from pages import snippets
from trainer_cases import DIGITS, batch, samples, trainer_for

from ntloss.trainers.number_aware import handle_of

PAGES = ["integrations.md", "transformers.md", "trl.md", "own_loop.md"]
SNIPPETS = [snippet for page in PAGES for snippet in snippets(f"docs/{page}")]


@dataclass
class Rows:
    """A dataset, of which `map` adds columns."""

    rows: list[dict[str, Any]]

    def map(self, function):
        """Add the columns that the function returns."""
        return Rows([{**row, **function(row)} for row in self.rows])


def surroundings(folder):
    """Names that the snippets assume: a model, its tokenizer, data, and trainers that fill in `...`."""

    def make_trainer(model, *_, train_dataset=..., compute_loss_func=None, **__):
        made = trainer_for(model, folder, accumulate=4, max_steps=1, compute_loss_func=compute_loss_func)
        made.processing_class = DIGITS
        if train_dataset is not ...:
            made.train_dataset = train_dataset.rows
        return made

    def make_sft_trainer(*_, **__):
        from tests.ntloss.trainers.test_sft import sft  # skips without TRL

        return sft(folder, max_steps=1)

    def make_grpo_trainer(_, reward, **__):
        from tests.ntloss.trainers.test_rewards import grpo  # skips without TRL

        return grpo(folder, reward, max_steps=1)

    return {
        "model": cases.llama(),
        "tokenizer": DIGITS,
        "vocabulary": DIGITS,
        "arguments": None,
        "loader": [batch(2, first) for first in range(0, 8, 2)],
        "Trainer": make_trainer,
        "SFTConfig": lambda *_: None,
        "SFTTrainer": make_sft_trainer,
        "GRPOConfig": lambda *_: None,
        "GRPOTrainer": make_grpo_trainer,
        "dataset": Rows(samples()),
        "is_name": lambda token: token == 3,
    }


def test_the_pages_have_a_snippet_for_each_way():
    calls = [
        "make_number_aware(",
        "SFTTrainer(",
        "compute_loss_func=",
        "num_items_in_batch=items",
        "number_reward(",
    ]
    for call in [*calls, "number_weights", "handle.loss.weight ="]:
        assert any(call in snippet for snippet in SNIPPETS), call


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"snippet {i}" for i in range(len(SNIPPETS))])
def test_a_snippet_runs_and_its_loss_is_number_aware(snippet, tmp_path):
    names = surroundings(tmp_path)
    if "SFTTrainer" in snippet or "GRPOTrainer" in snippet:
        pytest.importorskip("trl", "1.15")
    exec(snippet, names)
    trainer = names.get("trainer")
    if trainer is None:
        assert names["model"].lm_head.weight.grad.abs().max() > 0
        return
    assert len(trainer.state.log_history) > 1  # it has trained
    if "GRPOTrainer(" in snippet:
        assert "rewards/number_reward/mean" in trainer.state.log_history[0]
    elif "make_number_aware" in snippet:
        assert handle_of(trainer) is not None
        assert trainer.state.log_history[0]["number_share"] > 0
    if "number_weights" in snippet:
        assert "number_weights" in next(iter(trainer.get_train_dataloader()))
    if "WarmUp" in snippet:
        assert names["handle"].loss.weight == 0.0
