"""Errors state fields, and their text is formed once, in `skippipe.errors`."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import skippipe
from skippipe.errors import (
    DeadlockError,
    InputError,
    first_line,
    from_origin,
    in_file,
    in_group,
    unexpected,
    unreadable,
    unwritable,
)

PACKAGE = Path(skippipe.__file__).parent
FULL = InputError("odd", key="a.b", file="f.json", hint="try c", position=(3, 7), origin="rank 1")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FULL, "rank 1: f.json:3:7: a.b: odd; try c"),
        (unexpected("a", None, "a number", Path("f"), "b is none"), "f: a: expected a number, got null; b is none"),
        (unexpected("a", "", "a name"), "a: expected a name, got ''"),
        (in_file(InputError("odd"), "f.yaml", 2), "f.yaml:2: odd"),
        (in_file(FULL, "g.json"), "rank 1: g.json:3:7: a.b: odd; try c"),
        (in_group(unexpected("a", 1, "2"), "g"), "g.a: expected 2, got 1"),
        (in_group(InputError("odd"), "g"), "g: odd"),
        (from_origin(FULL, "job 2"), "job 2: rank 1: f.json:3:7: a.b: odd; try c"),
        (unreadable("a\nb", OSError(13, "Permission denied")), "a\\nb: cannot be read: Permission denied"),
        (unreadable("a\nb", "it is odd", "key"), "key: a\\nb cannot be read: it is odd"),
        (unwritable(Path("a"), ValueError("one\ntwo"), "output"), "output: a cannot be written: one"),
        (unexpected("a\x1b", "v\u202e", "w", "f\r"), "f\\r: a\\x1b: expected w, got v\\u202e"),
        (from_origin(DeadlockError("stuck", cycle=["x"]), "p.json"), "p.json: stuck"),
    ],
)
def test_texts(error: Exception, text: str) -> None:
    assert str(error) == text


def test_copies_leave_the_error_as_it_was() -> None:
    deadlock = DeadlockError("stuck", cycle=["x", "y"])
    assert from_origin(deadlock, "p.json").cycle == ("x", "y")
    assert (deadlock.origin, str(deadlock)) == (None, "stuck")
    for copied in (from_origin(FULL, "job"), in_file(FULL, "g", 1), in_group(FULL, "g")):
        assert vars(copied) != vars(FULL)
    assert str(FULL) == "rank 1: f.json:3:7: a.b: odd; try c"


def test_first_lines() -> None:
    assert first_line(OSError(28, "No space left on device", "x")) == "No space left on device"
    assert first_line(ValueError("\n one \n two")) == "one"
    assert first_line(ValueError()) == "ValueError"
    caused = RuntimeError("dressed up")
    caused.__cause__ = ValueError("the reason")
    assert first_line(caused) == "the reason"


@settings(max_examples=100, deadline=None)
@given(
    some.fixed_dictionaries(
        {},
        optional={name: some.text() for name in ("reason", "key", "file", "expected", "found", "hint", "origin")}
        | {"position": some.lists(some.integers(0, 10**6), min_size=1, max_size=2)},
    )
)
def test_fields_survive_json(fields: dict[str, object]) -> None:
    error = InputError(**fields)  # type: ignore[arg-type]
    again = InputError(**json.loads(json.dumps(error.fields())))
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def templates(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """All f-strings, with braces in place of values, and the strings that are arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Call):
            for text in node.args:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text, text.value


def test_no_other_module_forms_the_text() -> None:
    formed = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "errors.py"
        for node, text in templates(ast.parse(path.read_text()))
        if "expected " in text and ", got " in text
    ]
    assert formed == []


def test_no_reason_begins_with_a_file_or_key() -> None:
    begun = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "InputError"
        for _, text in (pair for argument in call.args for pair in templates(ast.Expression(argument)))
        if text.startswith(("{}: ", "{}=", "{}.{}"))
    ]
    assert begun == []
