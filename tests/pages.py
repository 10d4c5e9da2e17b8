"""Blocks of README and docs, and what stands in for what a reader has and the tests have not.

`python tests/pages.py` runs README's.
"""

import ast
import copy
import importlib
import io
import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[1]
STEPS = 2  # of each training


def blocks(page):
    """Language ("" without one) and text of the code blocks of a page, given by its path."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def snippets(page):
    return [text for language, text in blocks(page) if language == "python"]


def check_code(code):
    """Check that a program compiles, and that the names that it imports of ntloss exist."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ntloss":
            module = importlib.import_module(node.module)
            assert not [name.name for name in node.names if not hasattr(module, name.name)], ast.unparse(node)


def run_page(page, pretrained=None):
    """Run the Python blocks of a page in turn, as one program that begins with no names.

    Checkpoints are a tiny model, those of the hub the pair of tokenizer and model that is given, if any. The
    tokenizer of the examples is their own. Trainings end after two steps, and save no checkpoint but the best
    one. Yields each block, what it prints, and the names after it.
    """
    import transformers

    tiny = tiny_pair()
    train, of_folder = transformers.Trainer.train, transformers.AutoTokenizer.from_pretrained

    def train_shortly(trainer, *args, **kwargs):
        trainer.args.max_steps = STEPS
        if not trainer.args.load_best_model_at_end:
            trainer.args.save_strategy = "no"
        return train(trainer, *args, **kwargs)

    def pair(name):
        return pretrained if pretrained and not name.startswith(".") else tiny

    def load_tokenizer(name, **options):
        if name.startswith("examples/"):
            return of_folder(name, **options)
        loaded = copy.deepcopy(pair(name)[0])
        loaded.padding_side = options.get("padding_side", "right")
        return loaded

    def load_model(name, **options):
        return copy.deepcopy(pair(name)[1])

    stand_ins = {
        "transformers.AutoTokenizer.from_pretrained": load_tokenizer,
        "transformers.AutoModelForCausalLM.from_pretrained": load_model,
        "transformers.Trainer.train": train_shortly,
    }
    if any('SFTTrainer("' in snippet for snippet in snippets(page)):  # TRL loads the model
        stand_ins["trl.trainer.sft_trainer.create_model_from_path"] = load_model
    names = {"__name__": "__main__"}
    with ExitStack() as patches:
        for name, stand_in in stand_ins.items():
            patches.enter_context(mock.patch(name, stand_in))
        for snippet in snippets(page):
            names.pop("loss", None)
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(snippet, str(page), "exec"), names)
            yield snippet, output.getvalue(), names


def tiny_pair():
    """A tokenizer of single characters, and a model of about 80,000 weights."""
    with mock.patch("sys.path", [str(ROOT / "examples"), *sys.path]):
        import tiny
    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer()
    return tokenizer, tiny.make_llama(tokenizer)


def write_reviews(folder):
    """Write small tables with the columns of data/sentiment.csv and data/diamonds.csv into a folder.

    Beside them stand the folders of the repository that programs of the pages read.
    """
    rows = [
        f"tweet,Review {i} of a thing that is {'good' if i % 2 else 'bad'}.,{i * 7 % 81}" for i in range(900)
    ]
    for name in ("examples", "src"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "data").mkdir()
    (folder / "data" / "sentiment.csv").write_text("\n".join(["genre,text,sentiment", *rows]) + "\n")
    shutil.copy(ROOT / "src/ntl/data/sample/tabular/diamonds.csv", folder / "data")


if __name__ == "__main__":  # README's program on a tiny model and a tiny table
    with tempfile.TemporaryDirectory() as place:
        write_reviews(Path(place))
        os.chdir(place)
        for _, printed, _ in run_page("README.md"):
            print(printed, end="")
