"""Results resume from truncation at any byte, and other results are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from skippipe.errors import InputError
from skippipe.evaluate.results import RESULTS, SETTINGS, Result, Results, check_folder, parse_line

SEQUENCES = 3
ABOUT = {"model_sha256": "abc", "sequence": 4}


def some_results() -> list[Result]:
    random = np.random.Generator(np.random.PCG64(2))
    paths = [(0, 1, 2), (0, 2), (0, 2, 1), (0,)]
    return [
        Result(path, random.exponential(size=SEQUENCES) * 10, 0.5, None if n % 2 else 0.75)
        for n, path in enumerate(paths)
    ]


def fill(folder: Path) -> list[Result]:
    """Add missing results; return those already there."""
    with Results(folder, ABOUT, SEQUENCES) as results:
        there = list(results.known.values())
        for result in some_results():
            if result.path not in results.known:
                results.add(result)
    return there


def test_resumes_after_truncation_at_any_byte(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert fill(folder) == []
    path = folder / RESULTS
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        there = fill(folder)
        assert len(there) == whole[:length].count(b"\n")
        assert path.read_bytes() == whole
    assert [parse_line(line.decode(), SEQUENCES).path for line in lines] == [result.path for result in some_results()]


def test_losses_round_trip_bit_for_bit(tmp_path: Path) -> None:
    fill(tmp_path / "results")
    for read, made in zip(fill(tmp_path / "results"), some_results(), strict=True):
        assert np.array_equal(read.losses, made.losses)
        assert (read.path, read.seconds, read.time_ratio) == (made.path, made.seconds, made.time_ratio)


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    fill(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        InputError,
        match=r"settings.json: sequence: expected 8, got 4; results of other settings; choose another output",
    ):
        Results(folder, ABOUT | {"sequence": 8}, SEQUENCES)
    with pytest.raises(InputError, match=r"settings\.json: extra: expected 1, got null"):
        Results(folder, ABOUT | {"extra": 1}, SEQUENCES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _replaced(line: dict[str, object], **changes: object) -> str:
    return json.dumps({key: value for key, value in (line | changes).items() if value != "gone"})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: "{",
        lambda line: "[]",
        lambda line: "5",
        lambda line: _replaced(line, losses="gone"),
        lambda line: _replaced(line, losses="!"),
        lambda line: _replaced(line, losses="AAAAAAAAAAA="),
        lambda line: _replaced(line, layers="0"),
        lambda line: _replaced(line, layers=None),
        lambda line: _replaced(line, seconds=None),
    ],
)
def test_damaged_lines_are_named(spoil: Callable[[dict[str, object]], str], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    fill(folder)
    lines = (folder / RESULTS).read_text().splitlines()
    lines[1] = spoil(json.loads(lines[1]))
    (folder / RESULTS).write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"results\.jsonl:2: invalid result"):
        Results(folder, ABOUT, SEQUENCES)


def test_invalid_utf8_is_a_damaged_line(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    fill(folder)
    lines = (folder / RESULTS).read_bytes().splitlines(keepends=True)
    for offset in (0, 20, len(lines[1]) // 2):
        spoiled = lines[1][:offset] + b"\xff" + lines[1][offset + 1 :]
        (folder / RESULTS).write_bytes(lines[0] + spoiled + lines[2])
        with pytest.raises(InputError, match=r"results\.jsonl:2: invalid result"):
            Results(folder, ABOUT, SEQUENCES)


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"output: expected a folder, got the file .*file"):
        check_folder(tmp_path / "file")
    with pytest.raises(InputError, match=f"output: expected a new or empty folder, got .* with file and no {SETTINGS}"):
        check_folder(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / f".{SETTINGS}.123.tmp").write_text("{")  # a process that was killed has left it
    fill(empty)
    assert sorted(path.name for path in empty.iterdir()) == [RESULTS, SETTINGS]
