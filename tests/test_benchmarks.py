"""The benchmark runs, and its results can be read."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tolerances import assert_close

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import losses
    import measure
    import report

    threads = torch.get_num_threads()
    yield losses, measure, report
    torch.set_num_threads(threads)
    for name in ("losses", "measure", "report", "contenders", "training", "reading"):
        sys.modules.pop(name, None)


def test_tiny_shapes_give_tables_and_json(benchmarks, tmp_path, capsys):
    losses, *_ = benchmarks
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmark cpu: begin -->\nold\n<!-- benchmark cpu: end -->\nafter\n")
    options = ["--quick", "--no-compile", "--no-memory", "--repeats", "3", "--threads", "1"]
    assert losses.main([*options, "--output", str(tmp_path), "--markdown", str(page)]) == 0

    results = json.loads((tmp_path / "losses-cpu-quick.json").read_text())
    assert set(results) == {"machine", "options", "measurements", "skipped"}
    assert results["machine"]["torch"] == torch.__version__
    assert {m["table"] for m in results["measurements"]} == {*losses.TABLES, "integrations"}
    for measurement in results["measurements"]:
        assert 0 < measurement["least_ms"] <= measurement["median_ms"]
        assert measurement["rounds"] == 9 if measurement["table"] == "on_off" else 3
    # Whatever is left out says why.
    assert {"what": losses.c.CE + losses.COMPILED, "reason": "--no-compile"} in results["skipped"]

    text = capsys.readouterr().out
    assert "### The number term: on against off" in text
    assert text == (tmp_path / "losses-cpu-quick.md").read_text() + "\n"
    assert page.read_text().startswith("before\n<!-- benchmark cpu: begin -->\n" + text[:20])
    assert page.read_text().endswith("<!-- benchmark cpu: end -->\nafter\n")
    assert "old" not in page.read_text().splitlines()


def test_all_contenders_compute_the_same_cross_entropy(benchmarks):
    losses, *_ = benchmarks
    c = losses.c
    for case, names in (
        (c.Case(40, 1500, numbers=1110), [c.CE, c.OURS + c.OFF]),
        (c.Case(40, 1500, hidden=8), [c.HEAD, c.OURS_HIDDEN + c.OFF, c.TORCH_LINEAR, c.TORCH_CHUNKED]),
    ):
        inputs = c.Inputs(case)
        gradients = {}
        for name in names:
            try:
                gradients[name] = c.build(name, inputs).run()
            except c.UnavailableError:
                continue
        expected = gradients.pop(names[0])
        for found in gradients.values():
            assert_close(found, expected)


def test_the_gpu_tables_can_be_rendered_from_cpu_measurements(benchmarks, tmp_path, monkeypatch):
    losses, _, report = benchmarks
    c = losses.c
    monkeypatch.setattr(losses, "DENSE", losses.DENSE_ON_CUDA)
    monkeypatch.setattr(losses, "LINEAR", losses.LINEAR_ON_CUDA)
    monkeypatch.setattr(losses, "SHARES", losses.SHARES[-1:])
    monkeypatch.setitem(losses.training.MODELS, "cpu", losses.training.MODELS["cuda"])
    options = ["--quick", "--no-compile", "--no-memory", "--repeats", "1", "--threads", "1"]
    tables = ["--tables", "dense,linear,on_off,integrations", "--dtype", "bfloat16"]
    assert losses.main([*options, *tables, "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "losses-cpu-quick.json").read_text())
    measured = {m["contender"] for m in results["measurements"]}
    assert {c.CE, c.OURS, c.HEAD, c.OURS_HIDDEN, losses.training.OURS} <= measured
    # What a machine lacks is named, with the reason.
    skipped = {entry["what"].split(" at ")[0] for entry in results["skipped"]}
    assert {c.LIGER, c.LIGER_LINEAR, c.CUT} <= measured | skipped

    results["options"]["device"] = "cuda"
    results["machine"]["bandwidth_gb_s"] = 3000
    assert "### Share of the memory bandwidth" in report.render(results)


def test_the_reading_benchmark_times_the_walk_and_reads_a_model(benchmarks, monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "examples"))
    import reading
    import tiny

    monkeypatch.setattr(tiny, "CHARACTERS", [*tiny.CHARACTERS, "-", "."])
    tokenizer = tiny.make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    tiny.make_llama(tokenizer).save_pretrained(tmp_path)
    monkeypatch.setattr(reading, "QUESTIONS", 3)
    monkeypatch.setattr(reading, "BATCH", 3)
    monkeypatch.setattr(reading, "PROMPTS", ("2+2=",))
    assert reading.main(["--quick", "--model", str(tmp_path), "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "reading.json").read_text())
    assert results["walk"]["ratio"] > 0
    assert results["batch"][0]["ratio"] > 0
    (row,) = results["model"]
    assert row["values"] == sorted(row["values"])
    assert row["samples"] == sorted(row["samples"])
    assert "| 2+2= |" in capsys.readouterr().out
