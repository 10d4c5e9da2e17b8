import sys

import absl.logging
import datasets
import pytest

# Hydra closes the stream of absl, which rouge-score imports. Under pytest, that could be pytest's own.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

# A comparison that takes seconds: it exercises every step but learns nothing.
TINY = """
defaults: [compare, _self_]
dataset_args: {train_size: 64, validation_size: 8, test_size: 20}
model_args:
  config_overrides: {d_model: 16, d_kv: 8, d_ff: 16, num_layers: 1, num_heads: 2}
training_args:
  max_steps: 4
  per_device_train_batch_size: 8
  eval_steps: 2
  use_cpu: true
"""


@pytest.fixture
def tiny(tmp_path):
    """Return the arguments of a comparison that takes seconds, with a temporary output folder."""
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    swept = ["training_args.seed=0", "loss=ce,ntl_was"]
    launcher = "hydra/launcher=basic"  # starting a process costs more than its runs
    return [str(study), *swept, launcher, f"training_args.output_dir={tmp_path}/out"]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Let `datasets` cache what it reads in a temporary folder, also in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        yield


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """Return the folder of a tiny pretrained Llama."""
    from model_cases import save_pretrained

    return str(save_pretrained(tmp_path_factory.mktemp("model")))


@pytest.fixture
def no_figures(monkeypatch):
    """Leave figures out, which take seconds; report/test_figures.py draws them."""
    monkeypatch.setattr("ntl.report.figures.draw_figures", lambda *_: [])
