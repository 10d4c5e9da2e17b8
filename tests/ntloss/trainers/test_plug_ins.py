"""The keys of plug-ins, with stand-ins for frameworks that need environments of their own."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ntloss.trainers import llamafactory


@pytest.fixture
def run(monkeypatch):
    """Run the command for LLaMA-Factory with the arguments of a file; return the options of its trainers."""
    made = []
    monkeypatch.setattr(llamafactory, "make_number_aware", lambda trainer, **options: made.append(options))
    monkeypatch.setattr(sys, "argv", ["llamafactory", "train", "config.yaml"])

    def of(arguments):
        modules = {name: ModuleType(f"llamafactory{name}") for name in ("", ".train", ".hparams")}
        pt = SimpleNamespace(CustomTrainer=object)
        sft = SimpleNamespace(CustomSeq2SeqTrainer=object)
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
