"""The trainer's loss of every kind of model is the model's own plus the number term."""

from typing import Any

import accelerate
import pytest
import tiny_tokenizers
import torch
import torch.nn.functional as F
import trainer_cases as cases
import transformers
import vision_cases
from tolerances import GRADIENT_OF_MODEL, ONE_COMPUTATION, VALUE_TOLERANCE, approx, assert_close
from trainer_cases import DIGITS, VOCAB, batch, gradients, number_aware_trainer

from ntloss import HLGauss, NTLCrossEntropyLoss, NTLoss, NumberVocabulary, number_level
from ntloss.trainers import make_number_aware
from ntloss.trainers.columns import PREPARED, collate
from ntloss.trainers.number_aware import handle_of

# Each kind of head, of transform and of loss once; test_every_model.py has all models.
_CAUSAL: dict[str, dict[str, Any]] = {
    "Gemma2": {"final_logit_softcapping": 3.0, "head_dim": 8, "num_key_value_heads": 2},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 4.0},
    "Phi": {},  # a head with a bias
    "Mixtral": {
        "num_key_value_heads": 2,
        "num_local_experts": 2,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    },
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
_DROPOUTS = ("attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
_ENCODER_DECODER = {"T5": _OF_T5, "Bart": _OF_BART}
_ENCODER_DECODER["M2M100"] = {**_OF_BART, **dict.fromkeys(_DROPOUTS, 0.0), "pad_token_id": 0}
_SIZES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32,
    "attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
_MASKED = {"Bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
MODELS = (*_CAUSAL, *_ENCODER_DECODER, *_MASKED)


def make(name, **options):
    torch.manual_seed(0)
    own = _CAUSAL.get(name) or _ENCODER_DECODER.get(name) or _MASKED.get(name) or {}
    shared = {} if name in _ENCODER_DECODER else _SIZES
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": VOCAB, **shared, **own, **options})
    kind = "ForConditionalGeneration" if name in _ENCODER_DECODER else "ForCausalLM"
    kind = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}.get(name, kind)
    model = getattr(transformers, name + kind)(config).train()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


@pytest.fixture(params=cases.WAYS)
def way(request):
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_models_own_plus_the_weighted_number_term(name, way, tmp_path):
    model, inputs = make(name), batch()
    stock = model(**inputs)
    labels = inputs["labels"]
    if name in _CAUSAL:
        labels = F.pad(labels[:, 1:], (0, 1), value=-100)
    share = torch.isin(labels, torch.tensor(DIGITS.token_ids)).sum() / (labels != -100).sum()
    expected = stock.loss + 0.7 * share * NTLoss(DIGITS, reweigh=False)(stock.logits, labels)
    model.zero_grad()
    expected.backward()
    wanted = cases.gradients_of(model)
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.7})
    for _ in range(2):  # the first call also checks the head
        loss, found = gradients(trainer, **inputs)
        assert_close(loss, expected)
        assert_close(found, wanted)


def two_parts(first, second, **options):
    """A model of two others, which are made by themselves."""
    encoder, decoder = (
        transformers.BertConfig(vocab_size=VOCAB, **_SIZES, **_MASKED["Bert"], **each)
        for each in (first, second)
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    torch.manual_seed(0)
    return transformers.EncoderDecoderModel(config).train()


def fsmt():
    """A model whose head is an embedding, and whose decoder gets the source's ids."""
    torch.manual_seed(0)
    sizes = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "pad_token_id": 0, **_OF_BART}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**sizes)).train()


def test_a_decoder_whose_inputs_only_the_model_knows_has_the_models_own_loss(way, tmp_path):
    model, inputs = fsmt(), batch()
    expected = model(**inputs).loss.detach()
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    assert_close(gradients(trainer, **inputs)[0], expected)


def git():
    torch.manual_seed(0)
    sizes = {k: v for k, v in _SIZES.items() if "dropout" not in k}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = transformers.GitConfig(vocab_size=VOCAB, vision_config=vision, **sizes, **_MASKED["Bert"])
    return transformers.GitForCausalLM(config).train()


def test_a_decoder_made_of_an_encoder_masks_padding_as_its_own_loss_does(way, tmp_path):
    model, inputs = two_parts({}, {"is_decoder": True, "add_cross_attention": True}), batch()
    inputs["labels"][:, :3] = -100  # before labels that count, so that the decoder's padding matters
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    assert_close(gradients(trainer, **inputs)[0], model(**inputs).loss.detach())


def test_logits_of_images_before_the_text_are_left_out(way, tmp_path):
    model, inputs = git(), batch()
    inputs["pixel_values"] = torch.randn(4, 3, 8, 8)
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    logits = model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
    of_text = logits[:, -cases.LENGTH : -1].detach()
    expected = F.cross_entropy(of_text.flatten(0, 1), inputs["labels"][:, 1:].flatten())
    assert_close(gradients(trainer, **inputs)[0], expected)  # the model's own, but for transformers 4.57


@pytest.mark.parametrize("kind", vision_cases.CONFIGS)
def test_models_that_see_have_their_own_loss_plus_the_number_term(kind, way, tmp_path):
    if not hasattr(transformers, f"{kind}ForConditionalGeneration"):
        pytest.skip("this release of transformers lacks it")
    model = vision_cases.build(kind).train()
    prompt, digits = vision_cases.PROMPT, vision_cases.DIGITS
    inputs = vision_cases.inputs_of(kind, [(*prompt, 3, 6, 27), (*prompt[1:], 9, 27)], [1, 2])
    labels = inputs["input_ids"].clone()
    labels[0, : len(prompt)] = labels[1, : len(prompt)] = -100
    stock = model(**inputs, labels=labels)
    following = F.pad(labels[:, 1:], (0, 1), value=-100)
    term = torch.isin(following, torch.tensor(digits.token_ids)).sum() / (following != -100).sum()
    term = term * NTLoss(digits, reweigh=False)(stock.logits, following)
    for weight in (0.0, 0.7):
        model.zero_grad()
        expected = stock.loss + weight * term
        expected.backward(retain_graph=True)
        wanted = cases.gradients_of(model)
        trainer = number_aware_trainer(model, tmp_path, way, {"weight": weight, "vocabulary": digits})
        loss, found = gradients(trainer, **inputs, labels=labels)
        assert_close(loss, expected)
        assert_close(found, wanted, GRADIENT_OF_MODEL)


def test_labels_that_are_already_shifted_are_not_shifted_again(way, tmp_path):
    trainer, inputs = number_aware_trainer(cases.llama(), tmp_path, way), batch()
    shifted = F.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    expected = gradients(trainer, **inputs)[0]
    assert_close(gradients(trainer, **inputs, shift_labels=shifted)[0], expected, ONE_COMPUTATION)
    with pytest.raises(ValueError, match="shift_labels"):
        gradients(trainer, **inputs, shift_labels=shifted, number_weights=torch.ones(4, cases.LENGTH))


@pytest.mark.parametrize("criterion", [number_level, {"name": "hl_gauss", "sigma": 2.0}], ids=["level", "hl"])
def test_documents_that_are_packed_in_the_collator_keep_their_numbers_apart(way, criterion, tmp_path):
    # Where a document ends in a number, the next one begins with one; digits are the tokens 3 to 12.
    packed = [[[20, 4, 5], [6, 7, 8, 21], [9]], [[22, 5], [12], [6, 23, 4, 4, 24]]]

    def pack(rows):
        ids = torch.tensor([[token for each in row["documents"] for token in each] for row in rows])
        places = [[place for each in row["documents"] for place in range(len(each))] for row in rows]
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.tensor(places)}

    trainer = cases.trainer_for(cases.llama(), tmp_path)
    trainer.data_collator = pack
    make_number_aware(trainer, criterion, vocabulary=DIGITS, chunked=way == "chunked")
    inputs = collate(
        handle_of(trainer).loss.term.reader, pack, [{"documents": documents} for documents in packed]
    )
    record = {PREPARED: inputs.pop(PREPARED)}
    assert_close(gradients(trainer, **inputs, **record), gradients(trainer, **inputs), ONE_COMPUTATION)

    # The loss of all documents is that of each, but for the first label of a row, which nothing predicts.
    logits = trainer.model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"]).logits.detach()
    loss_fn, expected = NTLCrossEntropyLoss(DIGITS, criterion, reduction="sum"), 0.0
    for of_row, labels, documents in zip(logits, inputs["labels"], packed, strict=True):
        end = 0
        for document in documents:
            start, end = max(end, 1), end + len(document)
            expected += loss_fn(of_row[None, start - 1 : end - 1], labels[None, start:end]).item()
    loss = gradients(trainer, **inputs, **record)[0]
    expected /= inputs["labels"].numel() - len(packed)
    assert loss.item() == approx(expected, VALUE_TOLERANCE[torch.float32])
    of_joined = NTLCrossEntropyLoss(DIGITS, criterion, shift=True)(logits, inputs["labels"])
    assert loss.item() != approx(of_joined.item())


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"mode": "replace"}], ids=str)
def test_options_apply_in_training_and_evaluation(options, way, tmp_path):
    model, inputs = cases.llama(), batch()
    expected = NTLCrossEntropyLoss(DIGITS, shift=True, **options)(model(**inputs).logits, inputs["labels"])
    trainer = number_aware_trainer(model, tmp_path, way, options)
    assert_close(gradients(trainer, **inputs)[0], expected.detach())
    assert_close(trainer.compute_loss(model.eval(), inputs), expected)


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


@pytest.mark.parametrize(
    "make_model",
    [lambda: _Louder(cases.llama().config), mobile_bert],
    ids=["other logits", "the head's weight alone"],
)
def test_an_unsupported_head_is_an_error_with_chunked(make_model, tmp_path):
    trainer = number_aware_trainer(make_model(), tmp_path)
    gradients(trainer, **batch())
    make_number_aware(trainer, vocabulary=DIGITS, chunked=True)
    with pytest.raises(ValueError, match="chunked=False"):
        gradients(trainer, **batch())


def test_infinite_or_nan_logits_do_not_make_a_head_unsupported(way, tmp_path):
    model, inputs = cases.llama(), batch()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCAB))
    with torch.no_grad():
        model.lm_head.bias[VOCAB - 1] = -torch.inf
    inputs["labels"][inputs["labels"] == VOCAB - 1] = -100
    expected = model(**inputs).loss.detach()
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    assert_close(gradients(trainer, **inputs)[0], expected)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert gradients(trainer, **inputs)[0].isnan()  # not an error about the head


def test_a_model_spread_by_accelerate_keeps_its_hooks(way, tmp_path):
    model, inputs = cases.llama(), batch()
    expected = gradients(number_aware_trainer(model, tmp_path, way), **inputs)[0]
    model = accelerate.dispatch_model(model, {"model": "cpu", "lm_head": "cpu"}, "cpu", force_hooks=True)
    hooked = model.lm_head.forward
    assert_close(
        gradients(number_aware_trainer(model, tmp_path, way), **inputs)[0], expected, ONE_COMPUTATION
    )
    assert model.lm_head.forward is hooked


def test_a_routers_loss_that_is_added_inline_is_an_error(tmp_path):
    config = transformers.SwitchTransformersConfig(vocab_size=VOCAB, num_experts=2, **_OF_T5)
    trainer = number_aware_trainer(transformers.SwitchTransformersForConditionalGeneration(config), tmp_path)
    gradients(trainer, **batch())
    with pytest.raises(ValueError, match="output_router_logits"):
        gradients(trainer, **batch(), output_router_logits=True)


class _Further(transformers.LlamaForCausalLM):
    """A model with a second loss, which does not need the labels."""

    def forward(self, *args, of_rows, **kwargs):
        outputs = super().forward(*args, **kwargs)
        further = (self.model.norm.weight.mean() - 2 * of_rows).square().mean()
        outputs["loss"] = further if outputs.loss is None else outputs.loss + further
        return outputs


def test_a_second_loss_of_a_model_is_kept(way, tmp_path):
    model, inputs = _Further(cases.llama().config).train(), {**batch(), "of_rows": torch.ones(4)}
    expected = model(**inputs).loss
    trainer = number_aware_trainer(model, tmp_path, way, {"weight": 0.0})
    assert_close(gradients(trainer, **inputs)[0], expected.detach())


def test_whole_numbers_of_a_model_that_predicts_masked_digits_are_an_error(tmp_path):
    # Of the number 1934 with only its 9 masked, the labels hold the number 9.
    number_aware_trainer(make("Bert"), tmp_path, loss={"criterion": "gaussian_smoothing"})
    for criterion in (number_level, HLGauss(2.0)):
        with pytest.raises(ValueError, match="criterion"):
            number_aware_trainer(make("Bert"), tmp_path, loss={"criterion": criterion})


@pytest.mark.parametrize("shift", [None, True])
def test_a_loss_that_a_model_computes_of_its_logits_beside_that_of_labels_is_an_error(shift, tmp_path):
    model = cases.llama()
    model.z_loss_coefficient = 0.0  # as Bamba has it
    number_aware_trainer(model, tmp_path, loss={"shift": shift})
    model.z_loss_coefficient = 0.1
    with pytest.raises(ValueError, match="z_loss_coefficient"):
        number_aware_trainer(model, tmp_path, loss={"shift": shift})


def prophet_net():
    sizes = {"hidden_size": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return transformers.ProphetNetForConditionalGeneration(
        transformers.ProphetNetConfig(vocab_size=VOCAB, **sizes)
    )


@pytest.mark.parametrize(
    ("make_model", "options", "message"),
    [
        (
            cases.llama,
            {"vocabulary": NumberVocabulary.from_mapping({d: d for d in range(9)}, 12)},
            "vocab_size=48",
        ),
        (cases.llama, {"vocabulary": tiny_tokenizers.llama_like()}, "tokenizer"),
        (
            lambda: cases.llama(vocab_size=4000),
            {"vocabulary": tiny_tokenizers.llama_like()},
            "vocab_size=4000",
        ),
        (cases.llama, {"vocabulary": "gpt2"}, "NumberVocabulary"),
        (lambda: cases.llama().model, {}, "head"),
        (lambda: transformers.BartForCausalLM(make("Bart").config), {}, "shift=True"),
        (prophet_net, {}, "ProphetNet"),
    ],
    ids=[
        "vocabulary",
        "tokenizer",
        "small tokenizer",
        "no tokenizer",
        "no head",
        "inline and causal",
        "no loss",
    ],
)
def test_a_model_that_does_not_fit_is_an_error(make_model, options, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        number_aware_trainer(make_model(), tmp_path, loss=options)


def test_a_special_token_without_a_row_in_the_head_is_no_obstacle(tmp_path):
    # Gemma 3's tokenizer has a token for images behind the last row of its model's head.
    tokenizer = tiny_tokenizers.llama_like()
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    trainer = number_aware_trainer(cases.llama(vocab_size=rows), tmp_path, loss={"vocabulary": tokenizer})
    ids = torch.tensor(tokenizer(["1 2 3 4", "5 6 7 8"])["input_ids"])
    assert gradients(trainer, input_ids=ids, labels=ids)[0] > 0
    tokenizer.add_tokens([f"{number}" for number in range(100, 200)])
    with pytest.raises(ValueError, match="rows"):  # those of numbers need a row
        number_aware_trainer(cases.llama(vocab_size=rows), tmp_path, loss={"vocabulary": tokenizer})


def test_a_tokenizers_vocabulary_is_padded_to_the_models_width(tmp_path):
    tokenizer = tiny_tokenizers.llama_like()
    trainer = number_aware_trainer(cases.llama(vocab_size=320), tmp_path, loss={"vocabulary": tokenizer})
    ids = torch.tensor(tokenizer(["1 2 3 4", "5 6 7 8"])["input_ids"])
    assert gradients(trainer, input_ids=ids, labels=ids)[0] > 0
