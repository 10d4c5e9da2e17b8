from __future__ import annotations

import gzip
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ntl.data import Example, TaskData, fingerprint
from ntl.data.arrow import ROWS, read_cached
from ntl.data.files import read_lines, read_pairs
from ntl.errors import UserError

EXAMPLES = [Example(f"What is {i}?", str(i)) for i in range(ROWS + 5)]


@pytest.fixture
def examples(tmp_path):
    return read_cached(["numbers"], lambda: EXAMPLES, str(tmp_path))


def test_examples_in_a_file_behave_like_a_list(examples):
    assert len(examples) == len(EXAMPLES)
    assert list(examples) == EXAMPLES
    assert (examples[7], examples[-1]) == (EXAMPLES[7], EXAMPLES[-1])
    assert examples[ROWS - 2 : ROWS + 2] == EXAMPLES[ROWS - 2 : ROWS + 2]
    assert pickle.loads(pickle.dumps(examples))[3] == EXAMPLES[3]
    with pytest.raises(IndexError):
        examples[len(EXAMPLES)]


def test_lists_and_files_of_equal_content_have_the_same_fingerprint(examples):
    assert examples.fingerprint == fingerprint(EXAMPLES)
    parts = (examples, examples, {"test": examples}), (EXAMPLES, EXAMPLES, {"test": EXAMPLES})
    in_file, in_list = (TaskData(*part) for part in parts)
    assert in_file.fingerprint == in_list.fingerprint
    assert in_file.fingerprint != TaskData(EXAMPLES[:-1], EXAMPLES, {"test": EXAMPLES}).fingerprint


def test_the_dataset_is_memory_mapped_and_results_of_map_are_cached_next_to_it(examples, tmp_path):
    dataset = examples.dataset
    assert dataset.column_names == ["question", "answer"]
    [file] = [Path(entry["filename"]) for entry in dataset.cache_files]
    assert tmp_path in file.parents
    lengths = dataset.map(lambda batch: {"length": [len(q) for q in batch["question"]]}, batched=True)
    assert lengths[0]["length"] == len(EXAMPLES[0].question)
    assert [Path(entry["filename"]).parent for entry in lengths.cache_files] == [file.parent]


def test_cached_examples_are_not_read_again(tmp_path, examples):
    def fail():
        raise AssertionError

    assert read_cached(["numbers"], fail, str(tmp_path)) == examples
    assert read_cached(["others"], lambda: EXAMPLES[:3], str(tmp_path)) != examples


def test_simultaneous_readers_wait_for_the_first(tmp_path):
    reads = []
    all_here = threading.Barrier(4)

    def read():
        reads.append(1)
        return EXAMPLES

    def ask(_):
        all_here.wait()
        return read_cached(["numbers"], read, str(tmp_path)).fingerprint

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert len(reads) == 1


def test_an_interrupted_read_leaves_no_partial_cache(tmp_path):
    def broken():
        yield from EXAMPLES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_cached(["numbers"], broken, str(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert len(read_cached(["numbers"], lambda: EXAMPLES, str(tmp_path))) == len(EXAMPLES)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache_dir=.*file cannot be written .*dataset_args.cache_dir="):
        read_cached(["numbers"], lambda: EXAMPLES, str(tmp_path / "file"))


def test_a_file_that_has_changed_is_read_again(tmp_path):
    from ntl.data.files import load_files
    from ntl.data.tasks.mathematics_dataset import PREPARED, prepared_text

    for name in PREPARED.values():
        (tmp_path / name).write_text("What is 1?\n1\n")
    settings = {
        "name": "mathematics_dataset",
        "data_dir": str(tmp_path),
        "cache_dir": str(tmp_path / "cache"),
    }
    before = load_files(settings, [prepared_text(PREPARED)])
    (tmp_path / "train.txt").write_text("What is 1?\n1\nWhat is 2?\n2\n")
    after = load_files(settings, [prepared_text(PREPARED)])
    assert (len(before["train"]), len(after["train"])) == (1, 2)


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\u2028still one\x85\r\ntwo\x0bstill two\nthree".encode())
    assert list(read_lines(path)) == ["one\u2028still one\x85", "two\x0bstill two", "three"]


def test_a_gzip_file_is_read_and_a_truncated_one_is_an_error(tmp_path):
    path = tmp_path / "pairs.txt.gz"
    path.write_bytes(gzip.compress(b"".join(f"What is {i}?\n{i}\n".encode() for i in range(50_000))))
    assert len(list(read_pairs(path))) == 50_000
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"pairs.txt.gz, after line \d+: the file cannot be read .*truncated"):
        list(read_pairs(path))


@pytest.mark.parametrize("line", [3, 25_001])
def test_a_line_that_is_not_text_is_an_error_that_names_it(tmp_path, line):
    path = tmp_path / "pairs.txt"
    lines = [b"text\n"] * 30_000
    lines[line - 1] = b"caf\xe9\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=rf"pairs.txt, line {line}: it cannot be read as UTF-8"):
        list(read_pairs(path))
