"""Python blocks of README and docs, and the names that they assume a reader to have.

`python tests/pages.py README.md` runs those of a page.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]


def snippets(page: str) -> list[str]:
    """The Python blocks of a page, given by its path in the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def readers_names(folder: Path) -> dict[str, Any]:
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
        names = readers_names(Path(folder))
        for snippet in snippets(sys.argv[1]):
            exec(snippet, names)
