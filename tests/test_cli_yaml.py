"""YAML files of the user that cannot be used: status 2, one message naming file, line and key."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run

Refused = Callable[..., str]

LAUGHS = "a: &a 1\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghi"))
"""A few lines whose aliases stand for 9 ** 8 values."""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name:\n\t- x\n", "own.yaml:2: invalid YAML: found character '\\t'"),
        ("name: [a\nsites: 1\n", "own.yaml:"),
        ("defaults: [sites_schema]\nname: a\nname: b\n", "own.yaml:3: invalid YAML: found duplicate key name"),
        ("- a\n- b\n", "own.yaml:1: expected key: value, got a list"),
        ("words\n", "own.yaml:1: expected key: value, got 'words'"),
        ("defaults:\n  - sites_schema\n  - mars\n", "own.yaml:3: "),
        ("defaults: sites_schema\n", "own.yaml:1: defaults: expected a list, got 'sites_schema'"),
        (
            "defaults: [sites_schema]\nname: x\nsite: 2\n",
            "own.yaml:3: cluster.site: unknown key; did you mean",
        ),
        (
            "defaults: [sites_schema]\nnode:\n  memory: much\n",
            "own.yaml:3: cluster.node.memory: expected an integer, got much",
        ),
        ("defaults: [sites_schema]\nname: ${mars.moon}\n", "own.yaml:2: cluster.name: Interpolation key 'mars.moon'"),
        ("file: c.json\noverhead_s: 3\n", "own.yaml:2: cluster.overhead_s: expected nothing of a preset"),
        ("a: &x {b: *x}\n", "own.yaml:1: nested too deeply"),
        (LAUGHS, "own.yaml:1: expected at most 100000 values, got more"),
        ("a: " + "[" * 1000, "own.yaml:1: nested too deeply"),
        ("a: !!python/name:os.system\n", "own.yaml:1: invalid YAML"),
        (
            "# @package _global_\nhydra:\n  callbacks:\n    x: &x {_target_: os.system}\n    y: *x\n",
            "own.yaml:4: _target_: expected a launcher, sweeper or callback of Hydra, got 'os.system'",
        ),
        ("a: [{_target_: '${oc.env:HOME}'}]\n", "own.yaml:1: _target_: expected a launcher"),
        ("a: 1\n---\nb: 2\n", "own.yaml:2: invalid YAML"),
        (
            "name: box\n\tsites: 1\n",
            "own.yaml:2: invalid YAML: found character '\\t' that cannot start any token",
        ),
        ('a: "\x01"\n', "own.yaml:1: invalid YAML: character 0x0001"),
        (b"name: x\nname2: \xff\n", "own.yaml:2: expected UTF-8 text, got byte 0xff"),
    ],
    ids=lambda x: None if len(x) < 200 else "long",
)
def test_yaml_of_ones_own(content: str | bytes, said: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    path = tmp_path / "mine" / "cluster" / "own.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused("plan", "--config-dir", "mine", "cluster=own")
    assert f"mine/cluster/{said}" in message
    assert message.count("\n") == 1


def test_yaml_with_a_byte_order_mark(run: Run, tmp_path: Path) -> None:
    """It hides neither the settings nor what stands in the first line for Hydra."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    path = tmp_path / "mine" / "experiment" / "own.yaml"
    path.write_text("\ufeff# @package _global_\nplanner: {seed: 77}\n", encoding="utf-8")
    result = run("train", "--cfg", "job", "--config-dir", "mine", "experiment=own")
    assert result.status == 0, result.err
    assert "seed: 77" in result.out
