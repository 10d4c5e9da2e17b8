"""A stand-in for a hosted training API: Tinker's client, with a small model in place of the service.

Its cross-entropy takes `target_tokens` and `weights` of shape `[N]` or `[N, K]` and sums. A custom loss gets
the log-probabilities of the target tokens, and its derivatives by them become the weights of a second pass,
as https://tinker-docs.thinkingmachines.ai/tinker/losses says.
"""

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch


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


def module(tokenizer, model):
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
