"""Every example runs at a tiny size, learns, and is short enough to be read."""

import re
from pathlib import Path

import pytest
import torch
from processes import printed_by
from torch.torch_version import TorchVersion

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
# What else an example needs, how many processes it is for, and its arguments.
EXAMPLES = {
    "t5.py": (["transformers", "accelerate"], 1, []),
    "llama.py": (["transformers", "accelerate"], 1, ["--accumulate", "2", "--chunked"]),
    "multiple_choice.py": (["transformers", "accelerate"], 1, []),
    "trl_sft.py": (["trl"], 1, ["--packing"]),
    "plain_loop.py": (["transformers"], 1, ["--accumulate", "2"]),
    "lightning_loop.py": (["transformers", "lightning"], 1, ["--accumulate", "2"]),
    "mamba.py": (["transformers"], 1, ["--steps", "40"]),
    "fsdp.py": (["transformers"], 2, ["--accumulate", "2", "--chunked"]),
    "tensor_parallel.py": (["transformers"], 2, []),
}
# Of several processes, or of a library or a model that other tests train, too.
SLOW = {"fsdp.py", "tensor_parallel.py", "mamba.py", "lightning_loop.py"}
LINE = re.compile(r"^ *(before|after): loss ([\d.]+), CE ([\d.]+), NTL ([\d.]+)$", re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in EXAMPLES],
)
def test_both_loss_terms_decrease_in_every_example(name, tmp_path):
    needed, processes, arguments = EXAMPLES[name]
    for module in needed:
        pytest.importorskip(module)
    if name == "tensor_parallel.py" and torch.__version__ < TorchVersion("2.8"):
        pytest.skip(
            "gloo may deadlock in destroy_process_group here: https://github.com/pytorch/pytorch/pull/154976"
        )
    printed = printed_by(FOLDER / name, ["--steps", "20", *arguments], tmp_path, processes)
    lines = {when: [float(number) for number in numbers] for when, *numbers in LINE.findall(printed)}
    assert set(lines) == {"before", "after"}, printed
    assert all(after < before for before, after in zip(lines["before"], lines["after"], strict=True)), printed


def test_only_names_are_kept_out_of_the_number_term(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    import multiple_choice
    import tiny

    tokenizer = tiny.make_tokenizer()
    tokenizer.add_tokens(["(", ")"])
    for answer, expected in {"(2)": [0, 0, 0, 1], "12": [1, 1, 1]}.items():
        row = multiple_choice.preprocess({"question": "(1)12 (2)47=", "answer": answer}, tokenizer)
        weights = zip(row["labels"], row["number_weights"], strict=True)
        assert [weight for label, weight in weights if label != -100] == expected


def test_every_example_is_tested():
    assert {path.name for path in FOLDER.glob("*.py")} == {*EXAMPLES, "tiny.py"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_an_example_has_under_a_hundred_lines_and_says_how_to_run_it(path):
    text = path.read_text()
    assert len(text.splitlines()) < 100
    if path.name != "tiny.py":
        assert f"examples/{path.name}" in text.split('"""')[1]
