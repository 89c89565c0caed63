"""The file of records."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study.entries import make_entry, make_row

from skippipe.errors import InputError
from skippipe.study.records import format_json, load_records, merged, records_json, save_records
from skippipe.study.run_history import Point


def test_records_round_trip(tmp_path: Path) -> None:
    entries = [
        make_entry(evaluation=[make_row("none"), make_row()], note='said: "no"\n', skip_changes=[(0.8, 0.0)]),
        make_entry("other", 3, curve=[], mfu=None, text=None, finished=False),
    ]
    path = tmp_path / "new" / "records.json"
    save_records(path, entries)
    assert list(load_records(path).values()) == entries
    assert [*path.parent.iterdir()] == [path]
    assert load_records(tmp_path / "none.json") == {}


def test_one_more_validation_is_one_more_line() -> None:
    before = make_entry()
    after = dataclasses.replace(before, curve=[*before.curve, Point(400_000_000, 2.9, None)])
    lines = [records_json([entry]).splitlines() for entry in (before, after)]
    assert len(lines[1]) == len(lines[0]) + 1
    changed = [line for line in lines[1] if line not in lines[0]]
    assert [line.strip() for line in changed] == ["[300000000, 3.0, 2.95],", "[400000000, 2.9, null]"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_format_json_is_json(value: Any) -> None:
    assert json.loads(format_json(value)) == value


def test_malformed_files(tmp_path: Path) -> None:
    for name in ("records.md", "records", "records.png"):
        with pytest.raises(InputError, match=rf"records: expected a name ending in .json, got .*{name}"):
            load_records(tmp_path / name)
    path = tmp_path / "records.json"
    path.write_text('{"format": "skippipe.plan/1"}')
    with pytest.raises(InputError, match=r"records.json: format: expected skippipe.study/1, got skippipe.plan/1"):
        load_records(path)
    content = json.loads(records_json([make_entry()]))
    del content["entries"][0]["tokens"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"records.json: not written by `skippipe study`"):
        load_records(path)


def test_more_tokens_done_wins() -> None:
    done, begun = make_entry(evaluation=[make_row()]), make_entry(tokens_done=5, finished=False, curve=[])
    not_begun = make_entry(tokens_done=0, finished=False, text=None, curve=[])
    assert merged(None, begun) == begun
    assert merged(done, begun) == merged(begun, done) == done
    assert merged(done, not_begun) == merged(not_begun, done) == done
    assert merged(done, dataclasses.replace(done, evaluation=[], mfu=0.4)) == dataclasses.replace(done, mfu=0.4)


def test_finished_stays_finished() -> None:
    """A run killed after its last step, or read before its last event, has all tokens done but is unfinished."""
    done = make_entry(evaluation=[make_row()])
    almost = dataclasses.replace(done, finished=False, evaluation=[])
    assert merged(done, almost) == merged(almost, done) == done


def test_evaluations_are_combined() -> None:
    one, other, again = make_row("none"), make_row("last:1"), make_row("none", 21.0)
    here, there = make_entry(evaluation=[again]), make_entry(evaluation=[one, other])
    assert merged(there, here).evaluation == [again, other]
    assert merged(here, there).evaluation == [one, other]


def test_reading_a_run_elsewhere_changes_nothing() -> None:
    measured = make_entry()
    read = dataclasses.replace(measured, date="2026-12-24", versions={"skippipe": "9"})
    assert merged(measured, read) == measured
    further = dataclasses.replace(read, tokens_done=measured.tokens_done + 1)
    assert merged(measured, further) == further


def test_a_failure_is_recorded_until_there_is_progress() -> None:
    begun = make_entry(tokens_done=5, finished=False)
    failed = dataclasses.replace(begun, note="train: no memory")
    assert merged(begun, failed).note == "train: no memory"
    assert merged(failed, begun).note == "train: no memory"
    assert merged(failed, dataclasses.replace(begun, tokens_done=6)).note is None
    assert merged(failed, dataclasses.replace(begun, finished=True)).note is None
    evaluated = make_entry(evaluation=[make_row("none")], note="evaluate: no memory")
    assert merged(evaluated, dataclasses.replace(evaluated, note=None)).note == "evaluate: no memory"
    more = dataclasses.replace(evaluated, note=None, evaluation=[make_row("none"), make_row("last:1")])
    assert merged(evaluated, more).note is None
    other_machine = dataclasses.replace(begun, tokens_done=3, note="train: no disk")
    assert merged(begun, other_machine) == dataclasses.replace(begun, note="train: no disk")


def test_other_settings_are_not_merged() -> None:
    for other, what in (
        (make_entry(settings="c" * 64), "other settings"),
        (make_entry(text="c" * 64), "another corpus"),
    ):
        with pytest.raises(InputError, match=rf"whole, seed 0 is recorded with {what} \(hash"):
            merged(make_entry(), other)
    not_begun = make_entry(settings="c" * 64, tokens_done=0, finished=False, text=None, curve=[])
    assert merged(not_begun, make_entry()) == make_entry(), "of what was only intended nothing is lost"
