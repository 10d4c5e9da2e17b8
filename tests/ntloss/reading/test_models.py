"""Models of many families, plain and wrapped: a padded batch gives the quantiles of single prompts."""

import warnings
from typing import Any

import pytest
import torch
from reading_cases import assert_quantile, batch_of, fixed_width, make_model, next_token, texts_of
from tolerances import DISTRIBUTION, assert_close

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import Limits, number_quantiles
from ntloss.reading.torch_model import TorchModel

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
DIGITS = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(4)}, vocab_size=12)
QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
QUANTILES = (0.1, 0.3, 0.5, 0.9)
TWO_DIGITS = NumberFormat(2)
SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
STATES = {"hidden_size": 16, "num_hidden_layers": 2}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
LONG = {"max_position_embeddings": 64}
BART = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, **LONG},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 0},
}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 4}
HYBRID = {
    **{**SIZE, "num_key_value_heads": 2, "head_dim": 8, "mamba_d_ssm": 16, "mamba_n_heads": 2},
    **{"mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8},
}
# The class and its configuration: families whose positions are absolute or come from the mask, and recurrent
# models and hybrids.
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT,
    "GPTBigCodeForCausalLM": GPT,
    "OPTForCausalLM": {**STATES, "ffn_dim": 32, "num_attention_heads": 2, **LONG, "word_embed_proj_dim": 16},
    "GPTNeoForCausalLM": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, **LONG, **LOCAL},
    "BloomForCausalLM": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "XGLMForCausalLM": {"d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2},
    "RobertaForCausalLM": {**SIZE, "is_decoder": True, **LONG},
    "LlamaForCausalLM": SIZE,
    "MambaForCausalLM": {**STATES, "state_size": 4},
    "Mamba2ForCausalLM": {**STATES, "n_groups": 1, "state_size": 8, "num_heads": 4, "head_dim": 8},
    "FalconMambaForCausalLM": {**STATES, "state_size": 4},
    "FalconH1ForCausalLM": HYBRID,
    "Lfm2ForCausalLM": {**SIZE, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
}
ENCODER_DECODER: dict[str, dict[str, Any]] = {
    "BartForConditionalGeneration": BART,
    "PegasusForConditionalGeneration": BART,
    "T5ForConditionalGeneration": {
        **{"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
        "decoder_start_token_id": 0,
    },
}
DECODER_OF_BART = {**BART, "is_decoder": True, "is_encoder_decoder": False}


def make(name, **options):
    """A random model of a class, with large weights, so that a wrong position shows."""
    given = {**FAMILIES, **ENCODER_DECODER}.get(name, {})
    return make_model((name, {**given, **options}), 12, scale=None)


def check(plain, model, side="left"):
    """The batch's quantiles against all numbers that the plain model writes behind each prompt alone."""
    found = number_quantiles(model, batch_of(QUESTIONS, side), DIGITS, QUANTILES, format=TWO_DIGITS)
    for question, values in zip(QUESTIONS, found.values.tolist(), strict=True):
        numbers, _ = fixed_width(next_token(plain, torch.tensor(question)), texts_of(DIGITS), TWO_DIGITS)
        for value, quantile in zip(values, QUANTILES, strict=True):
            assert_quantile(value, quantile, numbers, DISTRIBUTION[torch.float32])


def with_lora(model):
    peft = pytest.importorskip("peft")
    target = ["c_attn"] if "c_attn" in str(model) else "all-linear"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPT-2's layers are transposed
        return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=target, task_type="CAUSAL_LM"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_padded_batch_gives_the_quantiles_of_single_prompts(name):
    check(make(name), make(name))


@pytest.mark.parametrize("wrap", [with_lora, torch.nn.DataParallel])
def test_a_wrapped_model_has_the_quantiles_of_the_model(wrap):
    # Adapters start at zero, so the wrapped model's numbers are the plain one's.
    check(make("GPT2LMHeadModel"), wrap(make("GPT2LMHeadModel")).eval())


@pytest.mark.parametrize("adapted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_model_has_the_quantiles_of_the_model(adapted):
    torch._dynamo.reset()
    model = make("GPT2LMHeadModel")
    compiled = torch.compile(with_lora(model).eval() if adapted else model, backend="eager")
    check(make("GPT2LMHeadModel"), compiled)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_an_encoders_padding_may_be_on_either_side(name, side):
    check(make(name), make(name), side)


def past_of(model, inputs, held):
    """The model's cache of the first tokens of each prompt."""
    ids, mask = (inputs[key][:, :held] for key in ("input_ids", "attention_mask"))
    positions = (
        {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if "Bloom" not in str(type(model)) else {}
    )
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, use_cache=True, **positions).past_key_values


@pytest.mark.parametrize(
    ("name", "held"),
    [*(("LlamaForCausalLM", n) for n in (1, 4, 6)), ("GPT2LMHeadModel", 4), ("BloomForCausalLM", 4)],
)
def test_a_cache_of_the_first_tokens_changes_no_quantile_and_can_be_used_again(name, held):
    model, inputs = make(name), batch_of(QUESTIONS)
    past = past_of(model, inputs, held)
    for form in (TWO_DIGITS, None, TWO_DIGITS):
        options = {"levels": QUANTILES, "format": form, "limits": Limits(max_digits=3)}
        plain, found = (
            number_quantiles(model, inputs, DIGITS, **options, **given)
            for given in ({}, {"past_key_values": past})
        )
        if form is not None:  # of many walks of any length, one may turn on one rounding
            assert_close(found.values, plain.values, DISTRIBUTION[torch.float32])
        assert_close(found.starts, plain.starts, DISTRIBUTION[torch.float32])
        assert past.get_seq_length() == held


def test_a_cache_that_does_not_belong_to_the_prompts_is_an_error():
    model, inputs = make("LlamaForCausalLM"), batch_of(QUESTIONS)
    t5, past = make("T5ForConditionalGeneration"), past_of(model, inputs, 7)
    others = past_of(model, batch_of(QUESTIONS[:2]), 4)
    wrong = [(model, others, ValueError), (model, past, ValueError), (t5, past, TypeError)]
    for other, given, error in (*wrong, (model, object(), TypeError)):
        with pytest.raises(error, match="past_key_values"):
            number_quantiles(other, inputs, DIGITS, format=TWO_DIGITS, past_key_values=given)


def test_a_family_that_cannot_be_padded_on_the_left_is_an_error():
    model = make("BartForCausalLM", **DECODER_OF_BART)
    with pytest.raises(ValueError, match="prompts of one length"):
        check(model, model)
    found = number_quantiles(model, batch_of(QUESTIONS[:1]), DIGITS, (0.5,), format=TWO_DIGITS)
    numbers, _ = fixed_width(next_token(model, torch.tensor(QUESTIONS[0])), texts_of(DIGITS), TWO_DIGITS)
    assert_quantile(found.values.item(), 0.5, numbers, DISTRIBUTION[torch.float32])


@pytest.mark.parametrize("name", ["MptForCausalLM", "BartForCausalLM", "BloomForCausalLM", "GPT2LMHeadModel"])
@torch.no_grad()
def test_what_continues_a_part_of_an_answer_has_the_positions_after_that_part(name):
    others = {
        "MptForCausalLM": {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
        "BartForCausalLM": DECODER_OF_BART,
    }
    model, answer, lengths = make(name, **others.get(name, {})), [3, 4, 5, 10, 2, 7, 6, 11], [2, 4, 7]
    log_probs = []
    for root in TorchModel(model).prefixes({"input_ids": torch.tensor([answer])}, lengths, rows=2):
        for tokens in ((5,), (5, 8)):
            after = root.next_tokens([(row, tokens) for row in range(len(root))], torch.arange(12))
        log_probs.append(after)
    plain = [next_token(model, torch.tensor(answer[:length]))([5, 8]) for length in lengths]
    assert_close(torch.cat(log_probs).exp(), torch.tensor(plain).double().exp(), DISTRIBUTION[torch.float32])


def with_learned_prompts(model):
    peft = pytest.importorskip("peft")
    learned = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(model, learned).eval()


OTHERS = {
    "RecurrentGemmaForCausalLM": {
        **{**SIZE, "num_hidden_layers": 3, "lru_width": 16, "attention_window_size": 8},
    },
    "OpenAIGPTLMHeadModel": GPT,
    "MiniMaxForCausalLM": {**SIZE, "head_dim": 8, "num_local_experts": 2},
    "FSMTForConditionalGeneration": {**BART, "src_vocab_size": 12, "tgt_vocab_size": 12},
}
OTHER_MODELS = {
    **{name: lambda name=name: make(name, **OTHERS[name]) for name in OTHERS},
    "LlamaModel": lambda: transformers.LlamaModel(make("LlamaForCausalLM").config).eval(),
    "T5Model": lambda: transformers.T5Model(make("T5ForConditionalGeneration").config).eval(),
    "Linear": lambda: torch.nn.Linear(1, 1).eval(),
    "learned prompts": lambda: with_learned_prompts(make("LlamaForCausalLM")),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_without_a_head_or_a_usable_cache_are_type_errors(name):
    with pytest.raises(TypeError, match=name):
        number_quantiles(OTHER_MODELS[name](), batch_of(QUESTIONS[:1]), DIGITS, format=TWO_DIGITS)


def test_logits_that_are_nan_are_an_error():
    model = make("LlamaForCausalLM")
    with torch.no_grad():
        model.get_input_embeddings().weight[8] = torch.nan
    with pytest.raises(ValueError, match=r"NaN for prompts \[2\]"):
        number_quantiles(model, batch_of(QUESTIONS), DIGITS, format=TWO_DIGITS)


class Ones(torch.nn.Module):
    """A last normalization whose states are exact in any dtype."""

    def forward(self, states):
        return torch.ones_like(states)


def test_rounding_logits_to_bfloat16_does_not_move_quantiles():
    # All weights are exact in bfloat16; their sums, the logits, are near 100, where its steps are 0.5.
    model = make_model("llama", DIGITS.vocab_size)
    model.model.norm = Ones()
    with torch.no_grad():
        model.lm_head.weight.zero_()[:, 0] = 100
        model.lm_head.weight[:, 1] = torch.linspace(-0.2, 0.2, DIGITS.vocab_size).bfloat16()
    exact, half = (
        number_quantiles(
            model.to(dtype),
            batch_of(QUESTIONS),
            DIGITS,
            [0.26, 0.3, 0.51, 0.74],
            format=TWO_DIGITS,
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert_close(exact.values, half.values)
    assert len(set(exact.values[0].tolist())) == 4


@pytest.mark.parametrize("name", ["RobertaForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("width", [NumberFormat(2, decimals=1, signed=True), None], ids=str)
def test_texts_that_share_a_cache_have_the_quantiles_of_texts_with_copies(name, width, monkeypatch):
    pieces = ["0", "1", "2", "10", "21", ".", "-", "+", " ", " -", " +"]  # several spellings of a number
    vocabulary = NumberVocabulary.from_mapping({2 + i: text for i, text in enumerate(pieces)}, 16)
    model = make(name, vocab_size=16).double()

    def read():
        return number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, width)

    shared = read()
    monkeypatch.setattr(model, "_supports_attention_backend", False)
    copied = read()
    for field in ("values", "starts", "ends", "continues"):
        assert_close(getattr(shared, field), getattr(copied, field))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_bfloat16_models_own_logits_stay_in_bfloat16(compiled):
    torch._dynamo.reset()
    model = make("LlamaForCausalLM").to(torch.bfloat16)
    used = torch.compile(model, backend="eager") if compiled else model
    number_quantiles(used, batch_of(QUESTIONS), DIGITS, QUANTILES, format=TWO_DIGITS)
    with torch.no_grad():
        assert used(**batch_of(QUESTIONS)).logits.dtype == torch.bfloat16
    assert not model.lm_head._forward_hooks
