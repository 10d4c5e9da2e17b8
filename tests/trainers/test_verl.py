"""verl: `make test-trainers TRAINER=verl`."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed: make test-trainers TRAINER=verl")
CONFIG = Path(__file__).parents[2] / "examples" / "trainers" / "verl.yaml"


def load_reward(**reward_kwargs):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = OmegaConf.load(CONFIG)
    config.reward.custom_reward_function.reward_kwargs.update(reward_kwargs)
    return get_custom_reward_fn(config)


@pytest.mark.parametrize(
    ("completion", "reward"), [("It is 42.", 1.0), ("It is 52.", 0.3679), ("No idea.", -1.0)]
)
def test_verls_own_loader_finds_the_reward_and_its_options(completion, reward):
    found = load_reward()(
        data_source="x", solution_str=completion, ground_truth="42", extra_info={"num_turns": 2}
    )
    assert abs(found - reward) < 1 / 1000


def test_verls_reward_manager_scores_a_completion(tmp_path):
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from tiny_model import save_model
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    tokenizer = AutoTokenizer.from_pretrained(save_model(tmp_path))
    ids = tokenizer("It is 52.", return_tensors="pt").input_ids
    batch = DataProto.from_dict(
        {"responses": ids, "attention_mask": torch.ones(1, 3 + ids.shape[1], dtype=torch.long)},
        {
            "data_source": np.array(["x"], dtype=object),
            "reward_model": np.array([{"ground_truth": "42"}], dtype=object),
        },
    )
    manager = NaiveRewardManager(OmegaConf.create({}), tokenizer, load_reward())

    async def score():
        manager.loop = asyncio.get_running_loop()
        return await manager.run_single(batch)

    assert abs(asyncio.run(score())["reward_score"] - 0.3679) < 1 / 1000


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="lenient"):
        load_reward(lenient=True)(data_source="x", solution_str="4", ground_truth="4", extra_info={})
