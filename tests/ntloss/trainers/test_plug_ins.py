"""The keys of plug-ins, with stand-ins for frameworks that need environments of their own."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases

from ntloss import NumberVocabulary
from ntloss.trainers import llamafactory, plug_ins
from ntloss.trainers.first_labels import FirstBatches, NumberLabelsMissingWarning
from ntloss.trainers.plug_ins import Options


@pytest.fixture
def run(monkeypatch):
    """Run the command for LLaMA-Factory with the arguments of a file; return the options of its trainers."""
    made = []
    monkeypatch.setattr(plug_ins, "make_number_aware", lambda trainer, **options: made.append(options))

    def of(arguments):
        monkeypatch.setattr(sys, "argv", ["llamafactory", "train", "config.yaml"])
        modules = {name: ModuleType(f"llamafactory{name}") for name in ("", ".train", ".hparams")}
        pt = SimpleNamespace(CustomTrainer=object)
        sft = SimpleNamespace(CustomSeq2SeqTrainer=lambda: SimpleNamespace(processing_class="tokenizer"))
        modules[".hparams"].read_args = lambda: dict(arguments)
        modules[".train"].tuner = SimpleNamespace(run_exp=lambda args: sft.CustomSeq2SeqTrainer())
        for stage, workflow in (("pt", pt), ("sft", sft)):
            modules[f".train.{stage}"] = ModuleType(stage)
            modules[f".train.{stage}"].workflow = workflow
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, f"llamafactory{name}", module)
        llamafactory.main()
        return made.pop()

    return of


def test_keys_of_a_file_are_options_of_make_number_aware(run):
    options = {"weight": 0.3, "thousands": ",", "chunked": True}
    expected = vars(Options(**options))
    assert run({"stage": "sft"} | {f"ntl_{name}": value for name, value in options.items()}) == expected
    assert {**expected} == {
        "criterion": "ntl_was",
        "mode": None,
        "label_smoothing": 0,
        "vocabulary": None,
    } | options


def test_an_unknown_option_is_an_error(run):
    with pytest.raises(TypeError, match="wieght"):
        run({"stage": "sft", "ntl_wieght": 0.3})
    with pytest.raises(TypeError, match="wieght"):
        llamafactory.run_exp({"stage": "sft"}, wieght=0.3)


def test_an_invalid_option_is_an_error_before_the_model_is_loaded(run):
    with pytest.raises(ValueError, match="crsp"):
        run({"stage": "sft", "ntl_criterion": "crsp"})


@pytest.fixture
def shares(monkeypatch):
    """A vocabulary of values that the function `own_vocabulary:make` makes from a tokenizer."""
    vocabulary = NumberVocabulary.from_mapping({i: i / 39 for i in range(40)}, vocab_size=60)
    module = ModuleType("own_vocabulary")
    module.make = {"tokenizer": vocabulary}.__getitem__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return vocabulary


def test_a_vocabulary_is_given_itself_or_as_the_name_of_a_function(run, shares):
    for given in (shares, "own_vocabulary:make"):
        options = run({"stage": "sft", "ntl_criterion": "crps", "ntl_vocabulary": given})
        assert options["vocabulary"] is shares
        loss = Options(criterion="crps", vocabulary=given).loss("tokenizer", 60)
        assert loss.vocabulary is shares


def test_a_vocabulary_that_does_not_fit_is_an_error_before_the_model_is_loaded(shares):
    hundreds = NumberVocabulary.from_mapping({1: 500, 2: 700}, vocab_size=60)
    for options, error, message in (
        ({"vocabulary": "own_vocabulary:other"}, AttributeError, "other"),
        ({"vocabulary": shares, "thousands": ","}, ValueError, "thousands"),
        ({"vocabulary": hundreds, "criterion": "crps"}, ValueError, "crps"),
    ):
        with pytest.raises(error, match=message):
            Options(**options)


def test_a_plug_in_warns_if_ten_batches_have_no_numbers():
    first = FirstBatches()
    with pytest.warns(NumberLabelsMissingWarning):
        found = [first.look(torch.tensor([[20, 21, -100]]), cases.DIGITS) for _ in range(12)]
    assert found == [None] * 12
    first = FirstBatches()
    batches = [[20, 21], [3, 21], [3, 4]]
    assert [first.look(torch.tensor([ids]), cases.DIGITS) for ids in batches] == [None, 0.5, None]


@pytest.fixture
def ms_swift(monkeypatch):
    """The plug-in for ms-swift, with stand-ins for what it imports; makes the loss of a trainer."""

    class BaseLoss:
        def __init__(self, args, trainer):
            self.trainer, self.is_megatron = trainer, False

    stub = SimpleNamespace(BaseLoss=BaseLoss, loss_map={})
    monkeypatch.setitem(sys.modules, "swift", SimpleNamespace(loss=stub))
    monkeypatch.setitem(sys.modules, "swift.loss", stub)
    monkeypatch.delitem(sys.modules, "ntloss.trainers.ms_swift", raising=False)
    plug_in = importlib.import_module("ntloss.trainers.ms_swift")

    def loss_of(trainer, **options):
        plug_in.register_number_loss(**options)
        return stub.loss_map["ntl"](None, trainer)

    yield loss_of
    sys.modules.pop("ntloss.trainers.ms_swift")


def test_ms_swift_logs_the_share_and_evaluates_before_training(ms_swift):
    logged: list[dict[str, float]] = []
    template = SimpleNamespace(
        tokenizer=tiny_tokenizers.llama_like(), sequence_parallel_size=1, padding_free=False
    )
    state = SimpleNamespace(global_step=0, max_steps=0)
    trainer = SimpleNamespace(template=template, state=state, log=logged.append)
    loss = ms_swift(trainer, criterion={"name": "hl_gauss", "sigma": (3.0, 1.0)})
    ids = torch.tensor(template.tokenizer(["1 2 3 4"])["input_ids"])
    outputs = SimpleNamespace(logits=torch.randn(*ids.shape, len(template.tokenizer)))
    assert loss(outputs, ids).isfinite()
    assert loss(outputs, ids).isfinite()
    assert [list(logs) for logs in logged] == [["number_share"]]
