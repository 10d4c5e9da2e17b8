"""A number-aware model has the right loss, and behaves as the stock model otherwise."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import accelerate
import integration_cases as cases
import pytest
import tiny_tokenizers
import torch
import torch.nn.functional as F
import transformers
from combined_cases import REWEIGHED
from integration_cases import DIGITS, VOCAB, batch, gradients, gradients_of
from tolerances import HALF_PRECISION, ONE_COMPUTATION, approx, assert_close

from ntloss import NTLCrossEntropyLoss, NumberLevel, NumberTokenLoss, NumberVocabulary
from ntloss.integrations.transformers import handle_of, make_number_aware
from ntloss.integrations.transformers.architecture import calls_loss_function
from ntloss.integrations.transformers.model import on_device
from ntloss.numbers.spans import sequence_ids_of

_CAUSAL: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 8, "num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2},
    "Gemma2": {"final_logit_softcapping": 3.0, "head_dim": 8, "num_key_value_heads": 2},
    "Gemma3": {"final_logit_softcapping": 3.0, "head_dim": 8, "num_key_value_heads": 2},
    "RecurrentGemma": {"logits_soft_cap": 3.0, "num_hidden_layers": 3, "attention_window_size": 8},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 4.0},
    "MiniCPM3": {  # scales before its head
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 2,
        "dim_model_base": 2,
    },
    "Phi": {},  # a head with a bias
    "Mixtral": {
        "num_key_value_heads": 2,
        "num_local_experts": 2,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    },
    "Mamba": {"state_size": 4},
    "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
}
_OF_BART = {
    "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0, "decoder_start_token_id": 2,
}  # fmt: skip
_OF_T5 = {
    "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
_ENCODER_DECODER = {"T5": _OF_T5, "MT5": _OF_T5, **dict.fromkeys(("Bart", "MBart", "Pegasus"), _OF_BART)}
_ENCODER_DECODER["Marian"] = {**_OF_BART, "pad_token_id": 0}
_DROPOUTS = ("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
_ENCODER_DECODER["M2M100"] = {**_OF_BART, **dict.fromkeys(_DROPOUTS, 0.0), "pad_token_id": 0}
_SIZES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32,
    "attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
# transformers 4 computes Mamba's loss inline, so that it is unknown whether labels are shifted.
NOT_YET = {
    name: pytest.mark.skip(reason=reason)
    for name, missing, reason in (
        ("Mamba", not calls_loss_function(transformers.MambaForCausalLM), "this release's needs shift=True"),
        ("MiniCPM3", not hasattr(transformers, "MiniCPM3Config"), "this release does not have it"),
    )
    if missing
}
_MASKED = {"Bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
MODELS = [pytest.param(name, marks=NOT_YET.get(name, ())) for name in (*_CAUSAL, *_ENCODER_DECODER, *_MASKED)]


def make(name, **options):
    torch.manual_seed(0)
    own = _CAUSAL.get(name) or _ENCODER_DECODER.get(name) or _MASKED.get(name) or {}
    shared = {} if name in _ENCODER_DECODER else _SIZES
    config = getattr(transformers, f"{name}{'Text' if name == 'Gemma3' else ''}Config")(
        **{"vocab_size": VOCAB, **shared, **own, **options}
    )
    kind = "ForConditionalGeneration" if name in _ENCODER_DECODER else "ForCausalLM"
    kind = {"GPT2": "LMHeadModel", "Marian": "MTModel", "Bert": "ForMaskedLM"}.get(name, kind)
    model = getattr(transformers, name + kind)(config).train()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


@pytest.fixture(params=[False, True], ids=["logits", "chunked"])
def chunked(request):
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_models_own_plus_the_weighted_number_term(name):
    model, inputs = make(name), batch()
    stock = model(**inputs)
    labels = inputs["labels"]
    if name in _CAUSAL:
        labels = F.pad(labels[:, 1:], (0, 1), value=-100)
    share = torch.isin(labels, torch.tensor(DIGITS.token_ids)).sum() / (labels != -100).sum()
    term = share * NumberTokenLoss(DIGITS)(stock.logits, labels)
    handle = make_number_aware(model, DIGITS, weight=0.7)
    outputs = model(**inputs)
    assert_close(outputs.loss, stock.loss + 0.7 * term)
    assert handle.terms is not None
    assert_close(handle.terms.loss, handle.terms.ce + 0.7 * handle.terms.ntl)  # without a router's loss
    assert_close(outputs.logits, stock.logits, ONE_COMPUTATION)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_from_hidden_states_is_the_same_without_logits(name):
    model, inputs = make(name), batch()
    with make_number_aware(model, DIGITS, weight=0.7):
        dense, expected = gradients(model, **inputs)
    with make_number_aware(model, DIGITS, weight=0.7, chunked=True):
        for _ in range(2):  # the first call also checks the head
            outputs, found = gradients(model, **inputs)
            assert outputs.logits is None
            assert_close(outputs.loss, dense.loss)
            assert_close(found, expected)
        model.eval()
        assert_close(model(**inputs).loss, dense.loss)
        assert model(**inputs).logits.shape == (*inputs["labels"].shape, VOCAB)


@pytest.mark.parametrize("name", cases.MODELS)
def test_undo_restores_exactly_the_stock_model(name, chunked):
    model, inputs = cases.MODELS[name](), batch()
    own, head = set(vars(model)), set(vars(model.lm_head))
    keys, signature = list(model.state_dict()), inspect.signature(model.forward)
    stock, expected = gradients(model, **inputs)
    with make_number_aware(model, DIGITS, chunked=chunked) as handle:
        assert list(model.state_dict()) == keys
        assert inspect.signature(model.forward) == signature  # trainers and `generate` read it
        assert handle_of(model) is handle
        loss = model(**inputs).loss
        assert loss > stock.loss
    assert handle_of(model) is None
    assert set(vars(model)) == own
    assert set(vars(model.lm_head)) == head
    again, found = gradients(model, **inputs)
    assert_close(again.loss, stock.loss, ONE_COMPUTATION)
    assert_close(found, expected, ONE_COMPUTATION)


@pytest.mark.parametrize("name", cases.MODELS)
def test_generation_and_saved_weights_are_those_of_the_stock_model(name, chunked, tmp_path):
    model, inputs = cases.MODELS[name](), batch()
    prompt = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    expected = model.eval().generate(**prompt, max_new_tokens=5, do_sample=False)
    stock_loss = model(**inputs).loss
    make_number_aware(model, DIGITS, chunked=chunked)
    assert torch.equal(model.generate(**prompt, max_new_tokens=5, do_sample=False), expected)
    model.train().generate(**prompt, max_new_tokens=2)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.architectures == [type(model).__name__]
    assert_close(loaded(**inputs).loss, stock_loss, ONE_COMPUTATION)


@pytest.mark.parametrize(("name", "chunked"), [("llama", False), ("t5", True)])
def test_a_compiled_model_has_the_same_loss_and_gradients(name, chunked):
    model, inputs = cases.MODELS[name](), batch()
    make_number_aware(model, DIGITS, chunked=chunked)
    outputs, expected = gradients(model, **inputs)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        loss = compiled(**inputs).loss
        loss.backward()
        assert_close(loss, outputs.loss)
        assert_close(gradients_of(model), expected)


@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
@pytest.mark.parametrize("name", cases.MODELS)
def test_low_precision_is_close(name, how, chunked):
    model, inputs = cases.MODELS[name](), batch()
    make_number_aware(model, DIGITS, chunked=chunked)
    expected = model(**inputs).loss
    if how == "bfloat16":
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        loss = model(**inputs).loss
    assert loss.dtype == torch.float32
    loss.backward()
    assert_close(loss, expected, HALF_PRECISION)


def test_a_copy_is_number_aware_with_its_own_weights(chunked):
    model, inputs = cases.llama(), batch()
    make_number_aware(model, DIGITS, chunked=chunked)
    loss = model(**inputs).loss
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_close(twin(**inputs).loss, loss, ONE_COMPUTATION)
    handle = handle_of(twin)
    assert handle is not None
    handle.undo()
    assert handle_of(model) is not None
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model)


def test_wrappers_of_the_forward_stay_and_work_after_undo(chunked):
    from accelerate.utils import extract_model_from_parallel
    from accelerate.utils.operations import convert_outputs_to_fp32

    model, inputs = cases.llama(), batch()
    stock = model(**inputs).loss
    handle = make_number_aware(model, DIGITS, chunked=chunked)
    loss = model(**inputs).loss
    model._original_forward = model.forward  # as accelerate does for mixed precision
    model.forward = convert_outputs_to_fp32(model.forward)
    assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)
    handle.undo()
    assert_close(model(**inputs).loss, stock, ONE_COMPUTATION)
    with make_number_aware(model, DIGITS, chunked=chunked):
        assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)
        extract_model_from_parallel(model, keep_fp32_wrapper=False)
        assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)


@pytest.mark.parametrize("name", cases.MODELS)
def test_return_dict_false_returns_a_tuple(name, chunked):
    model, inputs = cases.MODELS[name](), batch()
    make_number_aware(model, DIGITS, chunked=chunked)
    outputs = model(**inputs, return_dict=False)
    assert_close(outputs[0], model(**inputs).loss, ONE_COMPUTATION)
    positional = model(inputs["input_ids"], inputs["attention_mask"], labels=inputs["labels"])
    assert_close(positional.loss, outputs[0], ONE_COMPUTATION)


@pytest.mark.parametrize("criterion", [None, NumberLevel()], ids=["digits", "whole numbers"])
@pytest.mark.parametrize("name", cases.MODELS)
def test_micro_batches_with_the_count_of_a_step_add_up_to_the_whole_batch(name, criterion):
    model, inputs = cases.MODELS[name](), batch(8, 0)
    inputs["labels"][:, 0] = 4  # causal models do not predict it
    inputs["position_ids" if name == "llama" else "decoder_input_ids"] = torch.arange(9).expand(8, 9) % 3
    handle = make_number_aware(model, DIGITS, criterion)
    _, expected = gradients(model, **inputs)
    whole, total = torch.stack(tuple(handle.terms)), torch.zeros(3)
    model.zero_grad()
    parts = [{key: value[row : row + 2] for key, value in inputs.items()} for row in range(0, 8, 2)]
    items = cases.count_items(inputs["labels"], model)
    for part in parts:
        model(**part, num_items_in_batch=items).loss.backward()
        total += torch.stack(tuple(handle.terms))
    assert_close(gradients_of(model), expected)
    assert_close(total, whole)


def test_labels_that_are_already_shifted_are_not_shifted_again(chunked):
    model, inputs = cases.llama(), batch()
    make_number_aware(model, DIGITS, chunked=chunked)
    shifted = F.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    expected = model(**inputs).loss
    assert_close(model(**inputs, shift_labels=shifted).loss, expected, ONE_COMPUTATION)


def test_numbers_of_packed_sequences_are_separated(chunked):
    model = cases.llama()
    make_number_aware(model, DIGITS, NumberLevel(), chunked=chunked)
    ids = torch.tensor([[20, 4, 5, 6, 7, 8, 9, 21]])  # one number of six digits, or two of three
    position_ids = torch.arange(8).view(1, -1) % 4
    inputs = {"input_ids": ids, "labels": ids, "position_ids": position_ids}
    loss = model(**inputs).loss
    logits = model.eval()(**inputs).logits
    loss_fn = NTLCrossEntropyLoss(DIGITS, NumberLevel(), shift=True)
    assert_close(loss, loss_fn(logits, ids, sequence_ids=sequence_ids_of(position_ids)))
    assert loss.item() != approx(loss_fn(logits, ids).item())


def test_a_criterion_given_by_its_settings_is_one_for_training_and_evaluation():
    handle = make_number_aware(cases.llama(), DIGITS, {"name": "hl_gauss", "sigma": [8.0, 1.0]}, chunked=True)
    handle.loss.criterion.anneal(1.0)
    assert [float(loss.criterion.sigma) for loss in handle.losses] == [1.0, 1.0]


def test_a_schedule_sets_the_weight_of_training_and_evaluation():
    model, inputs = cases.llama(), batch()
    handle = make_number_aware(model, DIGITS, weight=0.5, chunked=True)
    full = model(**inputs).loss
    handle.loss.weight = 0.0
    assert handle.terms is not None
    for mode in (True, False):
        loss = model.train(mode)(**inputs).loss
        assert_close(loss, full - 0.5 * handle.terms.ntl)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1, "z_loss": 0.01},
        {"mode": "replace"},
        {"criterion": REWEIGHED},
        {"ignore_index": 5},
    ],
    ids=str,
)
def test_options_apply_to_the_losses_of_training_and_evaluation(options):
    model, inputs = cases.llama(), batch()
    logits = model(**inputs).logits
    expected = NTLCrossEntropyLoss(DIGITS, shift=True, **{"ignore_index": -100, **options})
    if "ignore_index" in options:
        inputs["labels"] = inputs["labels"].clamp(min=5)
    make_number_aware(model, DIGITS, chunked=True, **options)
    for mode in (True, False):
        assert_close(model.train(mode)(**inputs).loss, expected(logits, inputs["labels"]))


class _Louder(transformers.LlamaForCausalLM):
    """A model that transforms its logits in a way that its configuration does not show."""

    def forward(self, *args, labels=None, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = 3 * outputs.logits
        if labels is not None:
            outputs["loss"] = self.loss_function(outputs.logits, labels, VOCAB)
        return outputs


def mobile_bert():
    sizes = {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 16, "true_hidden_size": 16}
    return transformers.MobileBertForMaskedLM(
        transformers.MobileBertConfig(
            vocab_size=VOCAB, num_hidden_layers=1, num_attention_heads=2, use_bottleneck=False, **sizes
        )
    )


def fsmt():
    sizes = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "pad_token_id": 0, **_OF_BART}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**sizes))


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: _Louder(cases.llama().config), "transforms its head's logits in an unknown way"),
        (mobile_bert, "never calls its head: use chunked=False"),
        (fsmt, r"not a linear layer but Embedding.*Use chunked=False"),
    ],
    ids=["other logits", "the head's weight alone", "an embedding for a head"],
)
def test_an_unsupported_head_is_an_error_with_chunked(make_model, message):
    model = make_model().train()
    with make_number_aware(model, DIGITS):
        model(**batch())
    make_number_aware(model, DIGITS, chunked=True)
    with pytest.raises(ValueError, match=message):
        model(**batch())


def test_infinite_or_nan_logits_do_not_make_a_head_unsupported(chunked):
    model, inputs = cases.llama(), batch()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCAB))
    with torch.no_grad():
        model.lm_head.bias[VOCAB - 1] = -torch.inf
    inputs["labels"][inputs["labels"] == VOCAB - 1] = -100
    expected = model(**inputs).loss
    handle = make_number_aware(model, DIGITS, weight=0.0, chunked=chunked)
    assert_close(model(**inputs).loss, expected)
    handle.undo()
    make_number_aware(model, DIGITS, chunked=chunked)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert model(**inputs).loss.isnan()  # not an error about the head


def test_counts_on_the_cpu_are_not_copied_to_the_heads_device():
    count, labels = torch.tensor(3.0), torch.zeros(1, 4, dtype=torch.long)
    moved = on_device({"labels": labels, "num_items_in_batch": count}, torch.device("meta"))
    assert moved["labels"].device.type == "meta"
    assert moved["num_items_in_batch"] is count


def test_a_model_spread_by_accelerate_is_number_aware_and_undo_keeps_its_hooks(chunked):
    model, inputs = cases.llama(), batch()
    stock = model(**inputs).loss
    handle = make_number_aware(model, DIGITS, chunked=chunked)
    loss = model(**inputs).loss
    model = accelerate.dispatch_model(model, {"model": "cpu", "lm_head": "cpu"}, "cpu", force_hooks=True)
    hooked, hooked_head = model.forward, model.lm_head.forward
    assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)
    handle.undo()
    assert model.forward is hooked
    assert_close(model(**inputs).loss, stock)
    with make_number_aware(model, DIGITS, chunked=chunked):
        assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)
    assert model.lm_head.forward is hooked_head
    assert_close(model(**inputs).loss, stock, ONE_COMPUTATION)


class _TwoHeads(transformers.LlamaForCausalLM):
    """Has a second loss, as models with multi-token prediction do."""

    def forward(self, *args, labels=None, **kwargs):
        outputs = super().forward(*args, labels=labels, **kwargs)
        if labels is not None:
            outputs.loss = outputs.loss + self.loss_function(-outputs.logits, labels, VOCAB)
        return outputs


def test_a_second_loss_of_a_model_is_an_error():
    model = _TwoHeads(cases.llama().config)
    make_number_aware(model, DIGITS)
    with pytest.raises(ValueError, match="twice"):
        model(**batch())


def test_a_routers_loss_that_is_added_inline_is_an_error():
    config = transformers.SwitchTransformersConfig(vocab_size=VOCAB, num_experts=2, **_OF_T5)
    model = transformers.SwitchTransformersForConditionalGeneration(config)
    make_number_aware(model, DIGITS)
    model(**batch())
    with pytest.raises(ValueError, match="adds its routers' loss inline"):
        model(**batch(), output_router_logits=True)


class _Sharded(torch.nn.Module):
    """Forwards attributes to the module that it wraps, as FSDP and DeepSpeed do."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def test_a_model_is_found_inside_a_wrapper_that_forwards_its_attributes():
    model = cases.llama()
    handle = make_number_aware(model, DIGITS)
    assert handle_of(_Sharded(model)) is handle
    handle.undo()
    assert make_number_aware(_Sharded(model), DIGITS).model is model


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "another model's vocabulary": (
        lambda: make_number_aware(cases.llama(), NumberVocabulary.from_mapping({d: d for d in range(9)}, 12)),
        "vocab_size=48",
    ),
    "another model's tokenizer": (
        lambda: make_number_aware(cases.llama(), tiny_tokenizers.llama_like()),
        "expected the model's own tokenizer",
    ),
    "a much smaller tokenizer": (
        lambda: make_number_aware(cases.llama(vocab_size=4000), tiny_tokenizers.llama_like()),
        "far more than padding",
    ),
    "no model": (lambda: make_number_aware(DIGITS, cases.llama()), "given NumberVocabulary"),
    "a model's name": (lambda: make_number_aware("gpt2", DIGITS), "expected a transformers model, given str"),
    "no head": (lambda: make_number_aware(cases.llama().model, DIGITS), "no head found"),
    "inline and causal": (
        lambda: make_number_aware(transformers.BartForCausalLM(make("Bart").config), DIGITS),
        "Pass shift=True",
    ),
    "a loss other than cross-entropy of the logits": (
        lambda: make_number_aware(
            transformers.ProphetNetForConditionalGeneration(
                transformers.ProphetNetConfig(
                    vocab_size=VOCAB, hidden_size=16, num_encoder_layers=1, num_decoder_layers=1
                )
            ),
            DIGITS,
        ),
        "computes no cross-entropy that could be made number-aware",
    ),
    "neither tokenizer nor vocabulary": (
        lambda: make_number_aware(cases.llama(), "gpt2"),
        "expected a tokenizer or a NumberVocabulary",
    ),
    "an option that the model determines": (
        lambda: make_number_aware(cases.llama(), DIGITS, softcap=3.0),
        "softcap is no option of this loss: the model determines it",
    ),
    "an option of the vocabulary": (
        lambda: make_number_aware(cases.llama(), DIGITS, digit_level=False),
        r"pass NumberVocabulary.from_tokenizer\(tokenizer, digit_level=False",
    ),
    "a chunk size without chunks": (
        lambda: make_number_aware(cases.llama(), DIGITS, chunk_size=8),
        "it needs chunked=True",
    ),
    "a misspelled option": (
        lambda: make_number_aware(cases.llama(), DIGITS, wieght=0.1),
        r"unknown option 'wieght' .*: expected weight, criterion, .* did you mean weight\?",
    ),
    "a misspelled criterion": (
        lambda: make_number_aware(cases.llama(), DIGITS, "wassersten"),
        "no criterion is called 'wassersten'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_arguments_are_errors(wrong):
    act, message = WRONG[wrong]
    with pytest.raises((ValueError, TypeError), match=message):
        act()


def test_a_handle_prints_its_criterion_and_weight():
    with make_number_aware(cases.llama(), DIGITS) as handle:
        handle.loss.weight = 0.25
        assert repr(handle).startswith("NTL-WAS, λ 0.25")
    assert repr(handle).endswith("(undone)")


def test_making_a_model_number_aware_twice_is_an_error():
    model = cases.llama()
    handle = make_number_aware(model, DIGITS)
    with pytest.raises(ValueError, match="already number-aware"):
        make_number_aware(model, DIGITS)
    handle.undo()
    with pytest.raises(ValueError, match="undone already"):
        handle.undo()
    make_number_aware(model, DIGITS)


def test_a_user_loss_function_is_neither_lost_nor_mistaken_for_ours(chunked):
    def own(logits, labels, vocab_size, **_):
        return logits.sum()

    model = cases.llama()
    model.loss_function = own
    with pytest.raises(ValueError, match="loss_function of this LlamaForCausalLM has been replaced"):
        make_number_aware(model, DIGITS, chunked=chunked)
    del model._loss_function
    make_number_aware(model, DIGITS, chunked=chunked)
    model.loss_function = own
    with pytest.raises(ValueError, match="loss_function has not been replaced since"):
        model(**batch())


def test_a_tokenizers_vocabulary_is_padded_to_the_models_width():
    tokenizer = tiny_tokenizers.llama_like()
    model = cases.llama(vocab_size=320)
    handle = make_number_aware(model, tokenizer)
    assert handle.loss.vocabulary.vocab_size == 320
    ids = torch.tensor(tokenizer(["1 2 3 4", "5 6 7 8"])["input_ids"])
    assert model(input_ids=ids, labels=ids).loss > 0
