"""With a weight of 0, the loss of every language model that can be built tiny is the model's own."""

import inspect

import pytest
import torch
import trainer_cases as cases
import transformers
from tolerances import approx
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from ntloss.trainers import make_number_aware

MAPPINGS = {
    "causal": (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, 100),
    "masked": (MODEL_FOR_MASKED_LM_MAPPING_NAMES, 30),
    "encoder-decoder": (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, 15),
}
LARGEST = 5_000_000  # parameters
# Sizes, by the names that configurations give them.
_NAMES = {
    64: "max_position_embeddings n_positions",
    32: "hidden_size d_model n_embd dim emb_dim lru_width word_embed_proj_dim intermediate_size d_ff "
    "ffn_dim n_inner hidden_dim ffn_hidden_size encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
    "shared_expert_intermediate_size",
    16: "sliding_window attention_window_size embedding_size mamba_d_head",
    8: "head_dim d_kv kv_channels kv_lora_rank q_lora_rank v_head_dim qk_rope_head_dim qk_nope_head_dim "
    "linear_key_head_dim linear_value_head_dim num_buckets",
    4: "num_attention_heads num_heads n_head n_heads num_experts encoder_attention_heads "
    "decoder_attention_heads num_local_experts n_routed_experts state_size mamba_d_state "
    "mamba_n_heads rotary_dim time_step_rank",
    2: "num_hidden_layers num_layers n_layer n_layers num_decoder_layers encoder_layers decoder_layers "
    "num_encoder_layers num_experts_per_tok num_key_value_heads n_kv_heads linear_num_key_heads "
    "linear_num_value_heads mamba_expand",
    1: "n_group topk_group first_k_dense_replace n_shared_experts mamba_n_groups",
}
SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}
DROPOUTS = (
    "dropout attention_dropout activation_dropout hidden_dropout hidden_dropout_prob dropout_rate "
    "attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop resid_dropout embd_dropout "
    "embedding_dropout classifier_dropout encoder_layerdrop decoder_layerdrop layerdrop "
)
TOKENS = {"vocab_size": cases.VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHARED = {**TOKENS, "decoder_start_token_id": 0}


def build(kind, name):
    """A tiny model in training mode without dropout; None if this takes more than sizes."""
    config_class, model_class = CONFIG_MAPPING[kind], getattr(transformers, name)
    known = set(inspect.signature(config_class.__init__).parameters)
    known |= {field for parent in config_class.__mro__ for field in vars(parent).get("__annotations__", {})}
    sizes = {**SIZES, **dict.fromkeys(DROPOUTS.split(), 0.0)}
    try:
        config = config_class(**{key: size for key, size in sizes.items() if key in known}, **SHARED)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in model_class(config).parameters())
        torch.manual_seed(0)
        model = model_class(config).train() if size < LARGEST else None
    except Exception:  # each of them has rules of its own for how sizes fit
        return None
    for module in model.modules() if model is not None else ():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def own_loss(model, inputs):
    """The model's own loss; None if it cannot be called with these inputs, or draws random numbers."""
    try:
        losses = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            losses.append(model(**inputs).loss.item())
    except Exception:
        return None
    return losses[0] if losses[0] == approx(losses[1]) else None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_with_a_weight_of_zero_the_loss_is_the_models_own_or_a_clear_error(mapping, tmp_path):
    names, fewest = MAPPINGS[mapping]
    inputs, tested = cases.batch(), 0
    for kind, listed in names.items():
        name = listed if isinstance(listed, str) else listed[0]
        model = build(kind, name)
        stock = None if model is None else own_loss(model, inputs)
        if stock is None:
            continue
        trainer = cases.trainer_for(model, tmp_path)
        stock = own_loss(model, inputs)  # the trainer may have changed the model
        for chunked in (False, True):
            loss = error = None
            try:
                make_number_aware(trainer, weight=0.0, vocabulary=cases.DIGITS, chunked=chunked)
                loss = trainer.compute_loss(model, dict(inputs)).item()
            except ValueError as raised:
                error = str(raised)
            is_clear = error and any(
                text in error for text in ("shift=True", "cross-entropy", "chunked=False")
            )
            assert is_clear or loss == approx(stock), f"{name}, chunked={chunked}: {error}"
            tested += not (chunked or error)
    assert tested >= fewest
