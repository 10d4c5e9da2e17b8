"""The keys of plug-ins, with stand-ins for frameworks that need environments of their own."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import tiny_tokenizers
import torch

from ntloss import NumberVocabulary
from ntloss.trainers import llamafactory, plug_ins
from ntloss.trainers.plug_ins import Options


@pytest.fixture
def run(monkeypatch):
    """Run LLaMA-Factory with some arguments; return the options of its trainers."""
    made = []
    monkeypatch.setattr(plug_ins, "make_number_aware", lambda trainer, **options: made.append(options))

    def of(arguments):
        modules = {name: ModuleType(f"llamafactory{name}") for name in ("", ".train")}
        pt = SimpleNamespace(CustomTrainer=object)
        sft = SimpleNamespace(CustomSeq2SeqTrainer=lambda: SimpleNamespace(processing_class="tokenizer"))
        own = {"stage": "sft"}
        modules[".train"].tuner = SimpleNamespace(
            run_exp=lambda args: args == own and sft.CustomSeq2SeqTrainer()
        )
        for stage, workflow in (("pt", pt), ("sft", sft)):
            modules[f".train.{stage}"] = ModuleType(stage)
            modules[f".train.{stage}"].workflow = workflow
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, f"llamafactory{name}", module)
        llamafactory.run_exp(own | {f"ntl_{name}": value for name, value in arguments.items()})
        return made.pop()

    return of


def test_keys_of_a_file_are_options_of_make_number_aware(run):
    options = {"weight": 0.3, "thousands": ",", "chunked": True}
    defaults = {"criterion": "ntl_was", "mode": None, "label_smoothing": 0, "vocabulary": None}
    assert run(options) == defaults | options


@pytest.mark.parametrize(
    ("options", "error"), [({"wieght": 0.3}, TypeError), ({"criterion": "crsp"}, ValueError)]
)
def test_an_unknown_or_invalid_option_is_an_error_before_the_model_is_loaded(run, options, error):
    with pytest.raises(error, match=r"wieght|crsp"):
        run(options)


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
        options = run({"criterion": "crps", "vocabulary": given})
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


def test_ms_swift_evaluates_before_training(ms_swift):
    template = SimpleNamespace(
        tokenizer=tiny_tokenizers.llama_like(), sequence_parallel_size=1, padding_free=False
    )
    trainer = SimpleNamespace(template=template, state=SimpleNamespace(global_step=0, max_steps=0))
    loss = ms_swift(trainer, criterion={"name": "hl_gauss", "sigma": (3.0, 1.0)})
    ids = torch.tensor(template.tokenizer(["1 2 3 4"])["input_ids"])
    outputs = SimpleNamespace(logits=torch.randn(*ids.shape, len(template.tokenizer)))
    assert loss(outputs, ids).isfinite()
