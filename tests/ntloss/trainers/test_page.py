"""Every snippet of the pages on trainers runs as it is, and trains with a number term."""

from dataclasses import dataclass
from typing import Any

import integration_cases as cases
import pytest
from integration_cases import DIGITS, ROWS, batch, samples, trainer_for
from pages import snippets
from torch.utils.data import DataLoader
from transformers import default_data_collator

from ntloss.integrations.transformers import handle_of, make_trainer_number_aware

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
        from tests.ntloss.integrations.test_trl import sft  # skips without TRL

        return sft(folder, max_steps=1)

    def make_grpo_trainer(_, reward, **__):
        from tests.ntloss.integrations.test_rewards import grpo  # skips without TRL

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
        "DataLoader": lambda dataset, **options: DataLoader(dataset.rows[:ROWS], **options),
        "collator": default_data_collator,
    }


def test_the_pages_have_a_snippet_for_each_integration():
    calls = ["make_trainer_number_aware(", "make_number_aware(", "make_sft_number_aware("]
    more = [
        "compute_loss_func=",
        "num_items_in_batch=items",
        ".attach(",
        "NumberWeightsCollator(",
        "number_reward(",
    ]
    for call in calls + more:
        assert any(call in snippet for snippet in SNIPPETS), call


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"snippet {i}" for i in range(len(SNIPPETS))])
def test_a_snippet_runs_and_its_loss_is_number_aware(snippet, tmp_path):
    names = surroundings(tmp_path)
    if "integrations.trl" in snippet or "GRPOTrainer" in snippet:
        pytest.importorskip("trl", "1.15")
    if "attach(trainer)" in snippet:
        names["trainer"] = names["Trainer"](names["model"])
        make_trainer_number_aware(names["trainer"])
    exec(snippet, names)
    if "GRPOTrainer(" in snippet:
        assert "rewards/number_reward/mean" in names["trainer"].state.log_history[0]
        return
    if "compute_loss_func" in snippet:
        assert len(names["trainer"].state.log_history) > 1
        return
    if "number_weights" in snippet:
        assert "number_weights" in next(iter(names["trainer"].get_train_dataloader()))
    if (trainer := names.get("trainer")) is not None:
        if "trainer.train()" not in snippet:
            trainer.train()
        assert handle_of(trainer.model).terms.ntl > 0
    elif (handle := names.get("handle")) is not None:
        assert handle.terms.ntl > 0
    else:
        assert names["model"].lm_head.weight.grad.abs().max() > 0
