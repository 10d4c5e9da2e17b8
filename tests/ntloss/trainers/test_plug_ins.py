"""The keys of plug-ins, with stand-ins for frameworks that need environments of their own."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ntloss import NumberVocabulary
from ntloss.trainers import llamafactory
from ntloss.trainers.share import check_options


@pytest.fixture
def run(monkeypatch):
    """Run the command for LLaMA-Factory with the arguments of a file; return the options of its trainers."""
    made = []
    monkeypatch.setattr(llamafactory, "make_number_aware", lambda trainer, **options: made.append(options))

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
    assert run({"stage": "sft"} | {f"ntl_{name}": value for name, value in options.items()}) == options


def test_an_unknown_key_is_named_as_it_stands_in_the_file(run):
    with pytest.raises(TypeError, match="ntl_wieght"):
        run({"stage": "sft", "ntl_wieght": 0.3})


def test_an_unknown_option_is_named_as_it_stands_in_the_call():
    with pytest.raises(TypeError, match=r"^wieght"):
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
        check_options(vocabulary=given, criterion="crps")
        options = run({"stage": "sft", "ntl_criterion": "crps", "ntl_vocabulary": given})
        assert options == {"criterion": "crps", "vocabulary": shares}


def test_a_vocabulary_that_does_not_fit_is_an_error_before_the_model_is_loaded(run, shares):
    hundreds = NumberVocabulary.from_mapping({1: 500, 2: 700}, vocab_size=60)
    for options, message in (
        ({"vocabulary": "make"}, "vocabulary='make'"),
        ({"vocabulary": shares, "thousands": ","}, "thousands"),
        ({"vocabulary": hundreds, "criterion": "crps"}, "crps"),
    ):
        with pytest.raises(ValueError, match=message):
            run({"stage": "sft"} | {f"ntl_{name}": value for name, value in options.items()})
