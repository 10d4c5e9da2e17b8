"""Blocks of README and docs, and the names that some pages assume a reader to have.

`python tests/pages.py` runs README's.
"""

import io
import os
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[1]


def blocks(page):
    """Language ("" without one) and text of the code blocks of a page, given by its path."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def snippets(page):
    return [text for language, text in blocks(page) if language == "python"]


@contextmanager
def chdir(folder):
    """Work in a folder; contextlib.chdir needs Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_as_pasted(page, folder):
    """Run each Python block with no names but its own, and a tiny model in place of the hub's.

    Returns what each block prints.
    """
    names = readers_names(folder)
    printed = []
    with ExitStack() as patches:
        for hub, made in (("AutoTokenizer", "tokenizer"), ("AutoModelForCausalLM", "model")):
            patches.enter_context(mock.patch(f"transformers.{hub}.from_pretrained", return_value=names[made]))
        patches.enter_context(chdir(folder))
        for snippet in snippets(page):
            with redirect_stdout(io.StringIO()) as output:
                exec(snippet, {"__name__": "__main__"})
            printed.append(output.getvalue())
    return printed


def readers_names(folder):
    """What a reader brings along: a tokenizer, a model with its logits, data, and a trainer's arguments."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import tiny
    finally:
        sys.path.remove(str(ROOT / "examples"))
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_llama(tokenizer)
    batch = tiny.causal_batch(tokenizer, tiny.make_texts(4))
    output = model(**batch, output_hidden_states=True)
    dataset = [
        {name: column[0] for name, column in tiny.causal_batch(tokenizer, [text]).items()}
        for text in [("12+34=", "46")] * 4
    ]
    arguments = TrainingArguments(str(folder), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    return {
        "tokenizer": tokenizer,
        "model": model,
        "logits": output.logits[:, :-1],
        "hidden_states": output.hidden_states[-1][:, :-1],
        "labels": batch["labels"][:, 1:],
        "choice_token": tokenizer.convert_tokens_to_ids("3"),
        "dataset": dataset,
        "arguments": arguments,
        "Trainer": Trainer,
        "trainer": Trainer(model, arguments, train_dataset=dataset, processing_class=tokenizer),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*run_as_pasted("README.md", Path(folder)))
