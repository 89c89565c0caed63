"""Records: the requested field, unmodified, whatever else is in a file; one-line errors."""

import gzip
import json
import lzma
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from data.texts import shipped_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skippipe.data import text_files
from skippipe.data.corpus import open_corpus
from skippipe.data.text_files import json_texts, parquet_texts, plain_text

Run = Callable[..., Any]
BOM = b"\xef\xbb\xbf"
DEEP = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def texts_of(path: Path, field: str = "text") -> list[str]:
    read = parquet_texts if path.suffix == ".parquet" else json_texts
    return [chunk.text for chunk in read(str(path), field)]


def trained_on(folder: Path) -> list[str]:
    """Texts of a prepared folder, decoded from its tokens."""
    corpus = open_corpus(folder)
    stream = corpus.stream("training")
    assert stream[-1] == corpus.end_of_text
    parts = np.split(stream, np.flatnonzero(stream == corpus.end_of_text) + 1)[:-1]
    return [shipped_tokenizer().decode(part[:-1].tolist(), skip_special_tokens=False) for part in parts]


@pytest.fixture
def prepared(run: Run, tmp_path: Path) -> Callable[..., list[str]]:
    """Prepare files on the command line and return the training texts."""

    def call(*names: str) -> list[str]:
        (tmp_path / "v.txt").write_text("What is held out.\n")
        result = run("data", "prepare", f"data.training=[{','.join(names)}]", "data.validation=[v.txt]", "output=out")
        assert (result.status, result.err) == (0, "")
        return trained_on(tmp_path / "out")

    return call


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.lists(
    st.none()
    | st.builds(lambda more, text: more | text, st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
                st.fixed_dictionaries({}, optional={"text": st.none() | st.text(max_size=12)})),
    max_size=5,
)  # fmt: skip


@settings(
    derandomize=True, database=None, deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(made=RECORDS, indent=st.sampled_from([None, 0, 2]), array=st.booleans(), ascii_only=st.booleans(),
       part=st.integers(1, 40))  # fmt: skip
def test_json_in_any_layout(
    made: list[Any], indent: int | None, array: bool, ascii_only: bool, part: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """JSON Lines, an array or multi-line records, read in parts of any size."""
    monkeypatch.setattr(text_files, "READ_SIZE", part)
    if not any("text" in record for record in made if record):
        made = [*made, {"text": "late"}]
    if indent is not None:
        made = [{"text": "first"}, *made]  # shows that records span several lines
    if array:
        written = json.dumps(made, indent=indent, ensure_ascii=ascii_only)
    else:
        written = "".join(json.dumps(record, indent=indent, ensure_ascii=ascii_only) + "\n" for record in made)
    path = tmp_path / "a.json"
    path.write_text(written, encoding="utf-8")
    assert texts_of(path) == [record["text"] for record in made if record and record.get("text") is not None]


def test_only_the_field_is_read(prepared: Callable[..., list[str]], write: Callable[..., Path]) -> None:
    """Types of other fields, the order of files, dates, nulls and late fields do not matter."""
    files: dict[str, list[Any]] = {
        "nulls.jsonl": [{"text": None, "id": None}, None, {"id": 1}, {"text": ""}, {"text": "after nulls"}],
        "dates.jsonl": [{"text": "2024-01-05T10:00:00Z"}, {"text": "1"}, {"text": "null"}, {"text": "1e5", "n": 1e999}],
        "fields.jsonl": [{"text": "a", "id": 3}, {"id": "three", "text": "b"}, {"text": "c", "id": {"x": [1, {}]}}],
        "agents.jsonl": [
            {"prompt": "no text", "messages": [{"role": "user", "content": "no text"}], "text": "of a log"},
            {"image": {"path": "x.png", "bytes": None}, "audio": [1.5], "label": 3, "text": "odd columns"},
        ],
        "empty.jsonl": [],
    }
    for name, content in files.items():
        write(name, "\n".join(map(json.dumps, content)))
    write("numbers.jsonl", '{"huge": ' + "9" * 5000 + ', "text": "long numbers"}')
    names = [*files, "numbers.jsonl"]
    expected = {name: [r["text"] for r in files.get(name, []) if r and r.get("text")] for name in names}
    expected["numbers.jsonl"] = ["long numbers"]
    assert prepared(*names) == [text for name in names for text in expected[name]]


def test_any_order_of_files(prepared: Callable[..., list[str]], write: Callable[..., Path], tmp_path: Path) -> None:
    write("dates.jsonl", '{"text": "2024-01-05T10:00:00Z"}\n')
    pq.write_table(pa.table({"text": ["a"], "id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [{"x": "y"}], "text": pa.array([None], pa.null())}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"other": pa.array([], pa.int64())}), tmp_path / "norows.parquet")
    names = ["null.parquet", "norows.parquet", "a.parquet", "dates.jsonl"]
    assert prepared(*names) == ["a", "2024-01-05T10:00:00Z"]
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    assert prepared(*reversed(names)) == ["2024-01-05T10:00:00Z", "a"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_parquet_strings_of_every_kind(kind: Any, tmp_path: Path) -> None:
    texts = ["a", None, "2024-01-05", "", "é\0"] * 50
    table = pa.table({"n": range(250), "a.b": pa.array(texts).cast(kind), "a": [{"b": 1}] * 250})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    assert texts_of(tmp_path / "a.parquet", "a.b") == [text for text in texts if text is not None]


def test_byte_order_marks_and_compression(prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    """Byte order marks are ignored, also inside gzip; compression is detected by content or by name."""
    (tmp_path / "a.txt").write_bytes(BOM + b"one")
    (tmp_path / "b.jsonl").write_bytes(BOM + b'{"text": "two"}')
    (tmp_path / "c.json").write_bytes(BOM + b'[{"text": "three"}]')
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(BOM + b"four"))
    (tmp_path / "e.jsonl").write_bytes(lzma.compress(b'{"text": "five"}'))
    (tmp_path / "f.txt").write_text("BZh is how some words begin")
    (tmp_path / "g.txt").write_bytes(BOM)
    names = ["a.txt", "b.jsonl", "c.json", "d.txt.gz", "e.jsonl", "f.txt", "g.txt"]
    assert prepared(*names) == ["one", "two", "three", "four", "five", "BZh is how some words begin"]


def test_line_ends_across_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "READ_SIZE", 2)
    (tmp_path / "a.txt").write_bytes("a\r\né\r\rb\n".encode())
    assert "".join(chunk.text for chunk in plain_text(str(tmp_path / "a.txt"))) == "a\né\n\nb\n"


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


GOOD = b'{"text": "a"}\n'
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "number": ("x.jsonl", GOOD + b'{"text": 1}', ":2: text: expected a string, got a number"),
    "boolean": ("x.jsonl", b'\n{"text": true}', ":2: text: expected a string, got a boolean"),
    "array": ("x.json", b'[{"text":"a"},\n{"text":[]}]', ":2: text: expected a string, got"),
    "no record": ("x.jsonl", GOOD + b'"text"', ":2: expected a record (an object), got a string"),
    "no field": ("x.jsonl", b'{"body": "a", "n": 1}', ": data.field: expected one of ['body', 'n'], got text"),
    "surrogate": ("x.jsonl", b'{"text": "\\ud800"}', ":1: text: expected text, got half of a"),
    "cut line": ("x.jsonl", GOOD + b'{"text": "a', "x.jsonl:2:10: invalid JSON: Unterminated string"),
    "cut array": ("x.json", b'[{"text": "a"},\n', "x.json:2: invalid JSON: Expecting value"),
    "open array": ("x.json", b'[\n{"text": "a"}', "x.json:2: invalid JSON: expected ',' or ']'"),
    "after array": ("x.json", b'[]\n{"text": "a"}', "x.json:2: invalid JSON: expected the end of the file"),
    "deep": ("x.jsonl", GOOD + DEEP, "x.jsonl:2: nested too deeply"),
    "deep array": ("x.json", b"[\n" + DEEP + b"]", "x.json:2: nested too deeply"),
    "latin-1": ("x.jsonl", GOOD + b'{"text": "\xe9"}', "x.jsonl:2: expected UTF-8 text, got byte 0xe9"),
    "latin-1 text": ("x.txt", b"\xe9", "x.txt: expected UTF-8 text, got byte 0xe9 at 0"),
    "far on": ("x.txt.gz", gzip.compress(b"a line\r\n" * 3000 + b"\xc3\xe9"), "UTF-8 text, got byte 0xc3 at 24000"),
    "latin-1 in an array": ("x.json", b'[{"text": "a"},\n{"text":\n"\xe9"}]', ":3: expected UTF-8 text, got byte 0xe9"),
    "utf-16": ("x.txt", "a".encode("utf-16"), "expected UTF-8 text, got byte 0xff at 0"),
    "NUL": ("x.jsonl", GOOD + b"\0", "x.jsonl:2:1: invalid JSON: Expecting value"),
    "cut gzip": ("x.jsonl.gz", gzip.compress(GOOD)[:-9], "cannot be read: "),
    "empty": ("x.jsonl", b"", "x.jsonl contains no text"),
    "nulls": ("x.jsonl", b'{"text": null}\nnull\n', "x.jsonl contains no text"),
    "no rows": ("x.parquet", parquet(text=pa.array([], pa.string())), "x.parquet contains no text"),
    "null column": ("x.parquet", parquet(text=pa.array([None], pa.null())), "x.parquet contains no text"),
    "integers": ("x.parquet", parquet(text=[1]), "x.parquet: text: expected strings, got int64"),
    "bytes": ("x.parquet", parquet(text=[b"a"]), "x.parquet: text: expected strings, got binary"),
    "lists": ("x.parquet", parquet(text=[["a"]]), "x.parquet: text: expected strings, got list<"),
    "no column": ("x.parquet", parquet(body=["a"], n=[1]), ": data.field: expected one of ['body', 'n'], got text"),
    "cut parquet": ("x.parquet", parquet(text=["a"])[:-9], "cannot be read: "),
    "no parquet": ("x.parquet", b"PAR1", "cannot be read: "),
    "empty parquet": ("x.parquet", b"", "cannot be read: "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unreadable_files(case: str, run: Run, tmp_path: Path) -> None:
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "v.txt").write_text("What is held out.\n")
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    names = name if "contains no text" in message else f"good.jsonl,{name}"
    result = run("data", "prepare", f"data.training=[{names}]", "data.validation=[v.txt]", "output=out")
    assert result.status == 2, result
    assert result.err.startswith(f"skippipe data prepare: data.training: {name}")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_not_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "gone.txt").symlink_to("nowhere")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("pipe.jsonl", "folder.txt", "gone.txt", "loop.txt", "/dev/zero"):
        message = refused("data", "prepare", f"data.training=[{name}]", "data.format=text", "output=o")
        assert f"data.training[0]: expected a file, got {name}" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="needs somebody who may not read every file: not root")
def test_no_permission(run: Run, tmp_path: Path) -> None:
    for name in ("a.txt", "v.txt"):
        (tmp_path / name).write_text("A text.")
    (tmp_path / "a.txt").chmod(stat.S_IWUSR)
    hidden = tmp_path / "deep" / "er"
    hidden.mkdir(parents=True)
    hidden.chmod(0)
    for training, message in (
        ("a.txt", "data.training: a.txt: cannot be read: Permission denied\n"),
        ("deep/**/*.txt", "data.training[0]=deep/**/*.txt: deep/er/: cannot be read: Permission denied\n"),
    ):
        result = run("data", "prepare", f"data.training=[{training}]", "data.validation=[v.txt]", "output=o")
        assert (result.status, result.err) == (2, f"skippipe data prepare: {message}")
    hidden.chmod(stat.S_IRWXU)


LINE = "A line about pipelines and their stages.\n"
DATES = [{"text": f"2024-01-0{day}T10:00:00Z"} for day in range(1, 6)]
PLAIN = [{"text": f"{number}: {LINE}"} for number in range(5)]
WITH_NUMBERS: list[Any] = [record | {"id": number} for number, record in enumerate(PLAIN)]
WITH_SOURCES: list[Any] = [record | {"id": {"url": "u"}} for record in PLAIN]
CASES: dict[str, dict[str, list[Any]]] = {
    "dates": {"a.jsonl": PLAIN, "dates.jsonl": DATES},
    "dates first": {"dates.jsonl": DATES, "a.jsonl": PLAIN},
    "other fields": {"a.jsonl": WITH_NUMBERS, "b.jsonl": WITH_SOURCES},
    "other columns": {"a.parquet": WITH_NUMBERS, "b.parquet": WITH_SOURCES},
    "null": {"null.jsonl": [None, {"text": LINE}]},
    "words like tokens": {"end.jsonl": [{"text": "the token <|endoftext|> ends a text"}] * 8},
    "no rows": {"a.parquet": PLAIN, "none.parquet": []},
}
"""What libraries that guess types, or read whole records, stumble over."""


def write_records(path: Path, records: list[Any]) -> None:
    if path.suffix == ".parquet":
        columns = records[0].keys() if records else ["text"]
        types = {} if records else {"type": pa.string()}
        pq.write_table(pa.table({key: pa.array([record[key] for record in records], **types) for key in columns}), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("case", CASES)
def test_only_the_texts_of_records_are_read(case: str, prepared: Callable[..., list[str]], tmp_path: Path) -> None:
    for name, records in CASES[case].items():
        write_records(tmp_path / name, records)
    assert prepared(*CASES[case]) == [
        record["text"] for records in CASES[case].values() for record in records if record
    ]


def test_a_table_without_rows(refused: Callable[..., str], tmp_path: Path) -> None:
    write_records(tmp_path / "none.parquet", [])
    (tmp_path / "v.txt").write_text("What is held out.\n")
    training = ["data.training=[none.parquet]", "data.validation=[v.txt]"]
    assert "none.parquet contains no text" in refused("data", "prepare", *training, "output=o")
