"""README and the pages of docs: their Python blocks run and print what they say, and links lead to files."""

import ast
import pkgutil
import re
import socket
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from form_server import serving
from pages import ROOT, blocks, check_code, run_page, snippets, tiny_pair, write_reviews
from tolerances import SAID, approx

from ntloss import NTLCrossEntropyLoss

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
# Pages with tests of their own: below, and tests/ntloss/regression/test_regression_page.py.
ELSEWHERE = {"docs/regression.md", "docs/train.md"}
# What these pages print is about SmolLM2; others train, and have a tiny model in its place.
OF_SMOLLM2 = {
    "README.md",
    *(f"docs/{name}.md" for name in ("quickstart", "gallery", "uncertainty", "scores")),
}
# Those that train, or read much.
SLOW = {f"docs/{name}.md" for name in ("actions", "quickstart", "uncertainty", "scores")}
RUN = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
    for page in PAGES
    if snippets(page) and page not in ELSEWHERE
]
NEEDED = {
    "docs/gallery.md": ["matplotlib", "scipy"],
    "docs/train.md": ["trl", "datasets", "accelerate"],
    "docs/prices.md": ["trl", "datasets", "accelerate"],
    "docs/scores.md": ["sklearn", "accelerate"],
    "docs/uncertainty.md": ["httpx2"],
    "README.md": ["trl", "datasets", "accelerate"],
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
_EFFECT = re.compile(
    r"[0-9] % (?:lower|higher|narrower|wider|less|more)\b"
    r"|\b(?:lower|higher|lowers|lowered|raises|raised)\b[^.|\n]{0,80}\bby [0-9.]+(?: to [0-9.]+)? %"
)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)

pytestmark = [
    pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]


@dataclass(frozen=True)
class ModelInput:
    tokens: list

    @classmethod
    def from_ints(cls, tokens):
        assert all(isinstance(token, int) for token in tokens)
        return cls(list(tokens))


@dataclass(frozen=True)
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict


@dataclass(frozen=True)
class AdamParams:
    learning_rate: float


def done(value):
    return SimpleNamespace(result=lambda: value)


class TrainingClient:
    """A stand-in for a hosted training API: Tinker's client, with a small model in place of the service.

    Its cross-entropy takes `target_tokens` and `weights` of shape `[N]` or `[N, K]` and sums. A custom loss
    gets the log-probabilities of the target tokens, and its derivatives by them become the weights of a
    second pass, as https://tinker-docs.thinkingmachines.ai/tinker/losses says.
    """

    def __init__(self, tokenizer, model):
        self.tokenizer, self.model, self.optimizer = tokenizer, model.train(), None

    def get_tokenizer(self):
        return self.tokenizer

    def log_probs(self, datum):
        ids = torch.tensor([datum.model_input.tokens])
        targets, weights = (datum.loss_fn_inputs[name] for name in ("target_tokens", "weights"))
        assert targets.dtype == torch.int64
        assert targets.shape == weights.shape
        assert targets.shape[0] == ids.shape[1]
        log_probs = self.model(ids).logits[0].log_softmax(-1)
        return log_probs.gather(-1, targets.reshape(len(targets), -1)).reshape(targets.shape)

    def forward_backward(self, data, loss_fn):
        assert loss_fn == "cross_entropy"
        losses = [-(self.log_probs(each) * each.loss_fn_inputs["weights"]).sum() for each in data]
        loss = torch.stack(losses).sum()
        loss.backward()
        return done(SimpleNamespace(metrics={"loss:sum": loss.item()}))

    def forward_backward_custom(self, data, loss_fn):
        with torch.no_grad():
            known = [self.log_probs(each) for each in data]
        leaves = [each.requires_grad_() for each in known]
        loss, metrics = loss_fn(data, leaves)
        loss.backward()
        linear = [
            Datum(each.model_input, {**each.loss_fn_inputs, "weights": -leaf.grad})
            for each, leaf in zip(data, leaves, strict=True)
        ]
        self.forward_backward(linear, "cross_entropy")
        return done(SimpleNamespace(metrics={"loss:sum": loss.item(), **metrics}))

    def optim_step(self, params):
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(self.model.parameters())
        for group in self.optimizer.param_groups:
            group["lr"] = params.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return done(SimpleNamespace())


def tinker(tokenizer, model):
    """A module to stand in `sys.modules["tinker"]`; it keeps the clients that it made in `clients`."""
    made = ModuleType("tinker")
    made.clients = []

    class ServiceClient:
        def create_lora_training_client(self, base_model, rank):
            made.clients.append(TrainingClient(tokenizer, model))
            return made.clients[-1]

    made.ServiceClient = ServiceClient
    made.types = SimpleNamespace(ModelInput=ModelInput, Datum=Datum, AdamParams=AdamParams)
    return made


@pytest.fixture
def one_rank(monkeypatch):
    """The environment that torchrun gives the only process of a group."""
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("the page needs F.linear_cross_entropy")
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    given = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}
    for name, value in (given | {"GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def a_server(monkeypatch, smollm2):
    """A server of SmolLM2 for the page that names one at localhost:8000."""
    served = pytest.importorskip("ntloss.reading.served")
    tokenizer, model = smollm2
    texts = [tokenizer.decode([i]) for i in range(model.config.vocab_size)]
    with serving("vllm", model, texts=texts) as server:
        connect = served.ServedModel
        monkeypatch.setattr(served, "ServedModel", lambda url: connect(server.url))
        yield


@pytest.fixture
def a_hosted_trainer(monkeypatch):
    """A stand-in for the client of a hosted training API."""
    monkeypatch.setitem(sys.modules, "tinker", tinker(*tiny_pair()))


FIXTURES = {
    "docs/uncertainty.md": "a_server",
    "docs/fused_kernels.md": "one_rank",
    "docs/hosted_trainers.md": "a_hosted_trainer",
}


def said(snippet):
    """The comment after each `print(...)` of a block, which is what it prints; empty if there is none."""
    calls = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]
    printing = [call for call in calls if ast.unparse(call.func) == "print"]
    ends = [snippet.splitlines()[call.end_lineno - 1][call.end_col_offset :] for call in printing]
    return [end.partition("# ")[2] for end in ends] if any(ends) else []


def parts(line):
    """Split a line into its words and its numbers."""
    return _NUMBER.split(line), [float(number) for number in _NUMBER.findall(line)]


def check_losses(names):
    """Each block of a page on criteria makes a loss with a gradient."""
    (gradient,) = torch.autograd.grad(names["loss"], names["logits"])
    assert gradient.isfinite().all()
    assert gradient.any()


def check_shards(names):
    """The number term beside another kernel's cross-entropy, and the sharded losses, are the whole loss."""
    whole = NTLCrossEntropyLoss(names["vocabulary"])(
        names["hidden_states"] @ names["head"].weight.T, names["labels"]
    )
    assert names["loss"].item() == approx(whole.item())


def check_hosted(names):
    """The API has computed the loss and trained the model; the first blocks are of other frameworks."""
    if "result" not in names:
        return
    (client,) = sys.modules["tinker"].clients
    loss_fn, items = names["loss_fn"], names["items"]
    with torch.no_grad():
        losses = [
            loss_fn(client.model(torch.tensor([tokens])).logits, labels) for tokens, labels in names["rows"]
        ]
    before = names["result"].metrics["loss:sum"]
    after = sum(losses).item() / items
    assert 0 < after < before


CHECKS = {
    "docs/hosted_trainers.md": check_hosted,
    "docs/own_criterion.md": check_losses,
    "docs/fused_kernels.md": check_shards,
}


@pytest.mark.parametrize("page", RUN)
def test_the_python_blocks_of_a_page_run_in_turn_and_print_what_they_say(
    page, tmp_path, request, monkeypatch
):
    for module in NEEDED.get(page, []):
        pytest.importorskip(module)
    if page in FIXTURES:
        request.getfixturevalue(FIXTURES[page])
    pretrained = request.getfixturevalue("smollm2") if page in OF_SMOLLM2 else None
    write_reviews(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    for snippet, printed, names in run_page(page, pretrained):
        lines = printed.splitlines()
        for line, expected in zip(lines, said(snippet), strict=bool(said(snippet))):
            if expected:
                words, numbers = parts(line)
                assert words == parts(expected)[0]
                for number, in_page in zip(numbers, parts(expected)[1], strict=True):
                    assert number == approx(in_page, SAID, scale=0.1 if in_page < 1 else 1.0)
        CHECKS.get(page, len)(names)


@pytest.mark.parametrize("page", sorted(SLOW))
def test_the_python_blocks_of_a_long_page_compile_and_import_what_exists(page):
    check_code("\n".join(snippets(page)))


def test_the_blocks_of_the_page_on_training_run_in_turn_and_their_losses_see_the_numbers(
    tmp_path, monkeypatch
):
    for module in NEEDED["docs/train.md"]:
        pytest.importorskip(module)
    from ntloss.trainers import PREPARED

    shares, trained = 0, 0
    monkeypatch.chdir(tmp_path)
    for snippet, _, names in run_page("docs/train.md"):
        if "trainer.train()" not in snippet:
            assert names["model"].lm_head.weight.grad is None  # the loop ends with a step
            continue
        log = names["trainer"].state.log_history
        trained += len(log) > 0
        shares += "number_share" in log[0]
        if "number_weights" in snippet:
            assert PREPARED in next(iter(names["trainer"].get_train_dataloader()))
        if "GRPOTrainer(" in snippet:
            assert "rewards/number_reward/mean" in log[0]
        if "NumberErrors" in snippet:
            assert any("eval_mae_median" in entry for entry in log)
    assert (trained, shares) == (5, 4)  # TRL's rewards log no share


def test_accelerate_knows_the_configuration_of_several_gpus():
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "examples/fsdp.yaml"))  # an unknown key is an error
    assert (config.distributed_type, config.fsdp_config["fsdp_version"]) == ("FSDP", 2)


def test_readmes_install_lines_name_the_extra_that_a_block_needs():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {"torch", "ntloss", *sys.stdlib_module_names}
    brought = {"trl": ["datasets"]}
    for language, text in blocks("README.md"):
        for extra in re.findall(r'pip install "\./ntloss\[([\w,]+)\]', text if language == "bash" else ""):
            for name in extra.split(","):
                installed |= {re.split(r"[^\w]", requirement)[0] for requirement in extras[name]}
                installed |= {*brought.get(name, [])}
        for node in ast.walk(ast.parse(text if language == "python" else "")):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= installed, text


@pytest.mark.parametrize(
    "page", [*(page for page in PAGES if page != "docs/evidence.md"), "docs/playground/index.html"]
)
def test_no_page_but_that_of_evidence_holds_a_percentage_of_a_study(page):
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert not _EFFECT.findall(text)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_files_of_the_repository(page):
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    broken = [link for link in _LINK.findall(text) if not ((ROOT / page).parent / link).exists()]
    assert not broken


def test_every_name_that_the_page_for_agents_calls_exists():
    text = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"ntloss(?:\.\w+)+", text))):
        assert pkgutil.resolve_name(name), name
