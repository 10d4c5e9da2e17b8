"""The benchmark runs, and its results can be read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tolerances import approx, assert_close

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """Import the benchmark's modules, which are scripts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import losses
    import measure
    import report

    threads = torch.get_num_threads()
    yield losses, measure, report
    torch.set_num_threads(threads)
    for name in ("losses", "against", "measure", "report", "contenders", "training", "lab_step"):
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


def test_two_source_trees_are_timed_alternately(benchmarks, tmp_path, monkeypatch, capsys):
    losses, *_ = benchmarks
    monkeypatch.setattr(losses.against, "ROUNDS", 2)
    same = losses.against.PRESENT
    options = ["--quick", "--no-compile", "--repeats", "1", "--threads", "1", "--output", str(tmp_path)]
    tables = ["--tables", "dense,linear,criteria"]
    assert losses.main([*options, *tables, "--against", str(same)]) == 0
    rows = json.loads((tmp_path / "against-cpu-quick.json").read_text())["measurements"]
    assert {row["contender"] for row in rows} == set(losses.against.OURS) - {losses.OURS + losses.COMPILED}
    # Other tests and doctests may have registered criteria in this process that the other tree lacks.
    assert {None, "wasserstein", "smmd", "ntil"} <= {row["criterion"] for row in rows}
    for row in rows:
        assert row["rounds"] == losses.against.ROUNDS
        assert row["ratio"] == approx(row["new_ms"] / row["old_ms"])
        assert row["ratio_of_fastest"] > 0
    assert f"New over old, {len(rows)} rows: geometric mean" in capsys.readouterr().out

    with pytest.raises(ValueError, match="Name the folder that holds `ntloss`"):
        losses.main([*options, "--against", str(tmp_path)])


def test_peak_memory_is_that_of_one_run():
    # In a process of its own, as the benchmark: other tests may have changed how memory is given back.
    code = (
        "import measure, torch\n"
        "def run():\n"
        "    torch.ones(1 << 26, dtype=torch.uint8)  # given back before the next\n"
        "    torch.ones(1 << 26, dtype=torch.uint8)\n"
        "print(measure.peak_memory(measure.Contender(run), 'cpu'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    if done.stdout.strip() == "None":
        pytest.skip("this system does not tell a process's peak memory")
    assert 0.9 < int(done.stdout) / (1 << 26) < 1.1


def test_all_contenders_compute_the_same_cross_entropy(benchmarks):
    losses, *_ = benchmarks
    c = losses.c
    for case, names in (
        (c.Case(40, 1500, numbers=1110), [c.CE, c.OURS + c.OFF]),
        (c.Case(40, 1500, hidden=8), [c.HEAD, c.OURS_LINEAR + c.OFF, c.TORCH_LINEAR, c.TORCH_CHUNKED]),
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
    assert {c.CE, c.OURS, c.OURS + c.IN_PLACE, c.HEAD, c.OURS_LINEAR, losses.training.OURS} <= measured
    # What a machine lacks is named, with the reason.
    skipped = {entry["what"].split(" at ")[0] for entry in results["skipped"]}
    assert {c.LIGER, c.LIGER_LINEAR, c.CUT} <= measured | skipped

    results["options"]["device"] = "cuda"
    results["machine"]["bandwidth_gb_s"] = 3000
    assert "### Share of the memory bandwidth" in report.render(results)


def test_the_gpu_command_reports_a_missing_gpu(benchmarks, capsys):
    losses, *_ = benchmarks
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert losses.main(["--device", "cuda"]) == 0
    assert "no CUDA device" in capsys.readouterr().err
    assert losses.parse(["--device", "cuda"]).tables == ["dense", "linear", "on_off", "integrations"]


def test_kernels_read_the_logits_twice_and_write_them_once():
    pytest.importorskip("triton", reason="triton is not installed: it has wheels for Linux only")
    command = [sys.executable, str(BENCHMARKS / "traffic.py"), "--tokens", "1024", "--vocab", "20000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    operators, kernels = ([cell.strip() for cell in row.split("|")] for row in done.stdout.splitlines()[-2:])
    assert operators[1] == "operators, in pieces"
    assert kernels[1] == "kernels"
    assert 3 <= float(kernels[5]) < 3.2
    assert float(operators[5]) > 20
    assert int(kernels[2].replace(",", "")) < int(operators[2].replace(",", ""))


def test_a_step_of_every_loss_of_the_lab_is_timed(benchmarks, monkeypatch, capsys):
    pytest.importorskip("transformers")
    import lab_step

    data = ["dataset_args.train_size=10", "dataset_args.validation_size=1", "dataset_args.test_size=1"]
    monkeypatch.setattr(sys, "argv", ["lab_step.py", *data, "--rounds", "1"])
    lab_step.main()
    lines = capsys.readouterr().out.splitlines()
    _, *rows = (line.strip("| ").split(" | ") for line in lines if " | " in line)
    assert {name for name, *_ in rows} >= {"stock", "ce", *lab_step.LOSSES}
    assert all(float(figure) > 0 for _, *figures in rows for figure in figures)
