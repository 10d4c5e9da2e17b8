"""Tiny vision-language models of transformers, and what a processor would give them."""

import torch

from ntloss import NumberVocabulary

DIGITS = NumberVocabulary.from_mapping({d + 1: str(d) for d in range(10)}, vocab_size=32)
PAD, IMAGE, VIDEO, START, END = 0, 20, 21, 22, 23
TEXT = {
    **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256},
    **{"pad_token_id": PAD, "bos_token_id": 30, "eos_token_id": 31},
}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 8}
QWEN = {
    **{"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32},
    **{"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2},
}
IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
LINEAR = {
    **{"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    **{
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}
PROMPT = (24, START, IMAGE, IMAGE, IMAGE, IMAGE, END, 25, 26)  # with the four tokens of an image of 8 by 8


def rope(**more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **more}}


CONFIGS = {
    "Llava": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {
            **{**SMALL, "model_type": "clip_vision_model", "num_hidden_layers": 2, "patch_size": 4},
            "projection_dim": 16,
        },
        "image_token_id": IMAGE,
        "vision_feature_layer": -1,
    },
    "SmolVLM": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**SMALL, "num_hidden_layers": 1, "patch_size": 2},
        **{"image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": PAD},
    },
    "Gemma3": {
        "text_config": {**TEXT, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": {**SMALL, "num_hidden_layers": 1, "patch_size": 2, "vision_use_head": False},
        **{"image_token_id": IMAGE, "boi_token_id": START, "eoi_token_id": END, "mm_tokens_per_image": 4},
    },
    "Qwen2_5_VL": {
        "text_config": {**TEXT, **rope(mrope_section=[1, 1, 2])},
        "vision_config": {**QWEN, "window_size": 16, "fullatt_block_indexes": [0]},
        **IDS,
    },
    "Qwen3VL": {
        "text_config": {**TEXT, **rope(mrope_section=[2, 1, 1], mrope_interleaved=True)},
        "vision_config": {**QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
        **IDS,
    },
    "Qwen3_5": {
        "text_config": {
            **{**TEXT, **LINEAR},
            **rope(mrope_section=[2, 1, 1], mrope_interleaved=True, partial_rotary_factor=1.0),
        },
        "vision_config": {**QWEN, "num_position_embeddings": 64},
        **IDS,
    },
}


def build(kind, **more):
    """A random model with large weights."""
    import transformers

    torch.manual_seed(0)
    given = {**CONFIGS[kind], **more}
    model = getattr(transformers, f"{kind}ForConditionalGeneration")
    made = model._from_config(model.config_class(**given), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1 and bool(parameter.any()):
                parameter.mul_(5.0)
            elif parameter.dim() > 1:  # Gemma 3 begins without its images
                parameter.normal_(std=0.5)
    return made


def pixels(kind, seeds):
    """What a processor makes of random images of 8 by 8, one for each seed."""
    shape = (16, 96) if kind.startswith("Qwen") else (1, 3, 8, 8)
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    values = torch.cat([each[None] if kind == "SmolVLM" else each for each in drawn])
    grid = {"image_grid_thw": torch.tensor([[1, 4, 4]] * len(drawn))} if kind.startswith("Qwen") else {}
    return {"pixel_values": values, **grid}


def inputs_of(kind, prompts, seeds):
    """A batch of prompts, padded on the left, each with an image."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    is_image = (tokens == IMAGE).long()
    types = {"token_type_ids": is_image} if kind == "Gemma3" else {}
    types |= {"mm_token_type_ids": is_image} if kind.startswith("Qwen") else {}
    return {"input_ids": tokens, "attention_mask": mask, **types, **pixels(kind, seeds)}
