"""The output of the frozen layers is cached once, exactly, and never for other weights or rows."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from tolerances import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from ntl.approaches.frozen_layers import FrozenLayers
from ntl.errors import UserError
from ntl.training.state_cache import add_states


def make_approach(seed=0, tie=True, heads=lambda model: [], **config):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, tie_word_embeddings=tie, **sizes, **config))
    return SimpleNamespace(
        model=model, frozen=FrozenLayers(model, 2, heads(model)), collate=pad, inputs=lambda batch: batch
    )


def rows():
    return Dataset.from_dict({"input_ids": [[1, 2, 3], [4], [5, 6]], "length": [3, 1, 2]})


def pad(chosen):
    longest = max(len(row["input_ids"]) for row in chosen)
    ids = torch.tensor([[0] * (longest - len(r["input_ids"])) + r["input_ids"] for r in chosen])
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def interrupt(chosen):
    raise KeyboardInterrupt


def test_each_row_gets_its_own_states_and_a_second_call_reads_them(tmp_path):
    approach = make_approach()
    with_states = add_states(rows(), approach, tmp_path, 1.0)
    assert len(with_states) == 3
    for row in (with_states[i] for i in range(3)):
        assert_close(row["states"], approach.frozen.states(pad([row]))[0])
    approach.collate = interrupt  # not called again
    assert torch.equal(add_states(rows(), approach, tmp_path, 1.0)[2]["states"], with_states[2]["states"])


def test_other_draws_of_the_same_rows_compute_only_those_that_no_run_had(tmp_path, caplog):
    caplog.set_level("INFO", "ntl")
    approach = make_approach()
    add_states(rows().select([0, 2]), approach, tmp_path, 1.0)
    assert ": 2 rows" in caplog.messages[-1]
    drawn = add_states(rows().select([2, 1, 0, 1]), approach, tmp_path, 1.0)
    assert ": 1 rows" in caplog.messages[-1]
    for row in (drawn[i] for i in range(4)):
        assert_close(row["states"], approach.frozen.states(pad([row]))[0])
    approach.collate = interrupt
    assert len(add_states(rows().select([1, 0]), approach, tmp_path, 1.0)) == 2


def test_a_heads_prompts_use_the_states_of_prompts_with_answers(tmp_path):
    approach = make_approach()
    pairs = Dataset.from_dict({"input_ids": [[1, 2, 3, 9], [5, 6, 7]], "labels": [[9], [6, 7]]})
    add_states(pairs, approach, tmp_path, 1.0)
    prompts = Dataset.from_dict({"input_ids": [[5], [1, 2, 3]], "labels": [67.0, 9.0]})
    collate, approach.collate = approach.collate, interrupt
    found = add_states(prompts, approach, tmp_path, 1.0)
    for i in range(2):
        assert_close(found[i]["states"], approach.frozen.states(collate([prompts[i]]))[0])
    with pytest.raises(KeyboardInterrupt):  # other rows are computed
        add_states(Dataset.from_dict({"input_ids": [[5, 6]], "labels": [7.0]}), approach, tmp_path, 1.0)


THETA = {"rope_parameters": {"rope_theta": 2.0, "rope_type": "default"}}


@pytest.mark.parametrize("change", [{"seed": 1}, THETA])
def test_other_weights_or_another_configuration_have_another_cache(tmp_path, change):
    first = add_states(rows(), make_approach(), tmp_path, 1.0)[0]["states"]
    other = add_states(rows(), make_approach(**change), tmp_path, 1.0)[0]["states"]
    assert (first - other).abs().max() > 1e-5  # 0 if the first ones were read


def test_an_interrupted_cache_leaves_no_file_that_a_later_run_would_use(tmp_path):
    approach = make_approach()
    approach.collate = interrupt
    with pytest.raises(KeyboardInterrupt):
        add_states(rows(), approach, tmp_path, 1.0)
    assert [path.name for path in tmp_path.glob("*/*")] == ["lock"]


@pytest.mark.parametrize("kept", [0, 130, 3 * 128])  # bytes; a token has 128
def test_a_truncated_cache_is_an_error_that_names_its_file(tmp_path, kept):
    add_states(rows(), make_approach(), tmp_path, 1.0)
    path = next(tmp_path.glob("*/*.states"))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=f"{path.name} is damaged; .* Delete its folder"):
        list(add_states(rows(), make_approach(), tmp_path, 1.0))


def test_a_cache_above_the_limit_is_an_error_that_names_its_size(tmp_path):
    with pytest.raises(UserError, match=r"3 rows takes .* GB; expected at most .*state_cache_gb=1e-07"):
        add_states(rows(), make_approach(), tmp_path, 1e-7)
    listed = rows().to_list()
    assert add_states(listed, make_approach(), tmp_path, 1e-7, optional=True) is listed


def test_without_frozen_layers_or_with_a_limit_of_zero_nothing_is_cached(tmp_path):
    examples = rows()
    assert add_states(examples, SimpleNamespace(frozen=None), tmp_path, 1.0) is examples
    assert add_states(examples, make_approach(), tmp_path, 0.0) is examples
    assert not [*tmp_path.iterdir()]


def test_training_a_head_that_is_tied_to_the_embeddings_from_a_cache_is_an_error(tmp_path):
    tied = make_approach(heads=lambda model: [model.lm_head])
    with pytest.raises(UserError, match="train_head=true also trains the embeddings"):
        add_states(rows(), tied, tmp_path, 1.0)
    assert tied.model.model.embed_tokens.weight.requires_grad
    assert len(add_states(rows(), tied, tmp_path, 0.0)) == 3
    untied = make_approach(tie=False, heads=lambda model: [model.lm_head])
    assert untied.model.lm_head.weight.requires_grad
    assert not untied.model.model.embed_tokens.weight.requires_grad
    assert "states" in add_states(rows(), untied, tmp_path, 1.0)[0]
