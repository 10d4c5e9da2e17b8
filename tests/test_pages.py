"""README and the pages of docs: their blocks run, and their links lead to files of the repository."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch
from pages import ROOT, blocks, readers_names, run_as_pasted, snippets

# Pages whose blocks have tests of their own, which say more than that they run.
TESTED = {
    "docs/chat_models.md": "tests/ntloss/reading/test_chat_models_page.py",
    **{
        f"docs/{page}.md": "tests/ntloss/trainers/test_page.py"
        for page in ("integrations", "transformers", "trl", "own_loop")
    },
    "docs/own_criterion.md": "tests/ntloss/criteria/test_own_criterion_page.py",
    "docs/uncertainty.md": "tests/ntloss/reading/test_uncertainty_page.py",
    "docs/served_models.md": "tests/ntloss/reading/test_served_models_page.py",
    "docs/regression.md": "tests/ntloss/regression/test_regression_page.py",
    "docs/scores.md": "tests/ntloss/reading/test_scores_page.py",
    "docs/boxes.md": "tests/ntloss/reading/test_scores_page.py",
    "docs/fused_kernels.md": "tests/ntloss/test_fused_kernels.py",
}
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page) and page not in {*TESTED, "README.md"}]
)
def test_the_python_blocks_of_a_page_run_in_turn(page, tmp_path):
    names = readers_names(tmp_path)
    for snippet in snippets(page):
        names.pop("loss", None)
        exec(snippet, names)
        if (loss := names.get("loss")) is not None:
            (gradient,) = torch.autograd.grad(loss, names["model"].lm_head.weight, retain_graph=True)
            assert gradient.any(), snippet


def test_readmes_blocks_run_as_pasted_and_print_what_it_shows(tmp_path):
    printed = run_as_pasted("README.md", tmp_path)
    shown = [text for language, text in blocks("README.md") if not language]
    assert shown == printed[:1]


def test_readmes_install_lines_name_the_extra_that_a_block_needs():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {"torch", "ntloss", *sys.stdlib_module_names}
    for language, text in blocks("README.md"):
        for extra in re.findall(r'pip install "?\.\[(\w+)\]', text if language == "bash" else ""):
            installed |= {re.split(r"[^\w]", requirement)[0] for requirement in extras[extra]}
        for node in ast.walk(ast.parse(text if language == "python" else "")):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= installed, text


@pytest.mark.parametrize("page", TESTED)
def test_the_blocks_of_other_pages_have_a_test_of_their_own(page):
    assert Path(page).name in (ROOT / TESTED[page]).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_files_of_the_repository(page):
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    broken = [link for link in _LINK.findall(text) if not ((ROOT / page).parent / link).exists()]
    assert not broken
