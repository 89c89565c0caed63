"""Clusters from files and presets, allocations, and the settings that they are built from."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PUBLISHED
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.allocation import choose_sizes, default_stages, even_sizes, read_allocation
from skippipe.cluster import Cluster, load_cluster
from skippipe.config import LinkProfile, NodeProfile, RegionsConfig, SyntheticConfig
from skippipe.errors import InputError
from skippipe.presets import regions_cluster, synthetic_cluster
from skippipe.presets.regions import region_table

NODE = NodeProfile(forward_s=0.44, backward_s=0.66, loss_s=0.11, memory=2)


def synthetic(**changes: Any) -> SyntheticConfig:
    inside, farthest = LinkProfile(latency_s=0.001, bandwidth=1e9), LinkProfile(latency_s=0.15, bandwidth=1e7)
    config = SyntheticConfig(node=NODE, inside=inside, farthest=farthest)
    return dataclasses.replace(config, **changes)


def test_synthetic_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    first, again, other = (synthetic_cluster(synthetic(seed=seed)) for seed in (3, 3, 4))
    for name in ("forward_s", "memory", "latency_s", "bandwidth", "region_of"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.latency_s, other.latency_s)
    assert not np.array_equal(first.forward_s, other.forward_s)


def test_synthetic_figures_are_pinned() -> None:
    """A seed must mean the same cluster in every version of NumPy."""
    parts = synthetic_cluster(synthetic(seed=0, nodes=3, regions=2))
    assert parts.latency_s[0, 1] == pytest.approx(PINNED_LATENCY_S, rel=1e-12)
    assert parts.forward_s.tolist() == pytest.approx(PINNED_FORWARD_S, rel=1e-12)
    assert parts.memory.tolist() == PINNED_MEMORY


PINNED_LATENCY_S = 0.10023121730583999
PINNED_FORWARD_S = [0.5636922764956698, 0.31845490628403045, 0.5159241466737935]
PINNED_MEMORY = [2, 4, 3]


@settings(derandomize=True, database=None, max_examples=60)
@given(
    st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 9), st.floats(1, 8), st.floats(1, 4), st.integers(0, 3)
)
def test_synthetic_stays_within_its_settings(
    seed: int, nodes: int, regions: int, spread: float, asymmetry: float, more: int
) -> None:
    config = synthetic(
        seed=seed, nodes=nodes, regions=regions, speed_spread=spread, asymmetry=asymmetry, memory_spread=more
    )
    parts = synthetic_cluster(config)
    assert len(set(parts.names)) == nodes
    assert parts.latency_s.shape == parts.bandwidth.shape == (regions, regions)
    assert parts.forward_s.max() / parts.forward_s.min() <= spread * (1 + 1e-9)
    assert parts.memory.min() >= 2
    assert parts.memory.max() <= 2 + more
    assert parts.latency_s.min() >= 0.001 * (1 - 1e-9)
    assert parts.latency_s.max() <= 0.15 * asymmetry * (1 + 1e-9)
    assert parts.bandwidth.min() >= 1e7 / asymmetry * (1 - 1e-9)
    ratio = parts.latency_s / parts.latency_s.T
    assert ratio.max() <= asymmetry * (1 + 1e-9)
    assert set(parts.region_of.tolist()) <= set(range(regions))


def test_asymmetry_of_one_means_symmetric_links() -> None:
    parts = synthetic_cluster(synthetic(regions=5, asymmetry=1.0, speed_spread=1.0, memory_spread=0))
    assert np.allclose(parts.latency_s, parts.latency_s.T)
    assert np.allclose(parts.bandwidth, parts.bandwidth.T)
    assert np.unique(parts.forward_s).size == np.unique(parts.memory).size == 1


def test_region_table_is_the_published_one_but_for_the_slip() -> None:
    published = json.loads((PUBLISHED / "regions12.json").read_text())
    table = region_table()
    for pair in published["pairs"]:
        a, b = table.names.index(pair["a"]), table.names.index(pair["b"])
        slip = {pair["a"], pair["b"]} == {"NL", "London"}
        assert table.latency_s[a, b] == table.latency_s[b, a] == pair["latency_s"]
        assert table.bandwidth[a, b] == table.bandwidth[b, a] == (260382392 if slip else pair["bandwidth"])
    assert np.all(np.diag(table.latency_s) == published["within_region"]["latency_s"])
    assert np.all(np.diag(table.bandwidth) == published["within_region"]["bandwidth"])


def test_regions_number_the_nodes_of_a_region() -> None:
    parts = regions_cluster(RegionsConfig(regions=["NL", "Iowa", "NL"], node=NODE))
    assert parts.names == ["NL-0", "Iowa-0", "NL-1"]
    assert parts.region_of.tolist() == [0, 1, 0]
    assert parts.latency_s[0, 1] == 0.051


@given(st.integers(1, 200), st.integers(1, 200))
@settings(derandomize=True, database=None)
def test_even_sizes(nodes: int, stages: int) -> None:
    if stages > nodes:
        with pytest.raises(InputError, match=rf"schedule\.stages: expected .*, got {stages}$"):
            even_sizes(nodes, stages)
        return
    sizes = even_sizes(nodes, stages)
    assert len(sizes) == stages
    assert sum(sizes) == nodes
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_sizes_come_from_the_first_that_says_something() -> None:
    assert choose_sizes([1, 3], 4, None, [2, 1, 1]) == [1, 3]
    assert choose_sizes(None, 4, None, [2, 1, 1]) == [2, 1, 1]
    assert choose_sizes(None, 4, 3, [2, 1, 1]) == [2, 1, 1]
    assert choose_sizes(None, 4, 2, [2, 1, 1]) == [2, 2]
    assert choose_sizes(None, 5, None, [2, 1, 1]) == [2, 2, 1]
    assert [default_stages(n) for n in (1, 2, 3, 4, 5, 6, 10, 99)] == [1, 2, 2, 3, 3, 4, 6, 6]


def test_sizes_that_suit_the_sources() -> None:
    assert choose_sizes(None, 4, None, [2, 1, 1], [3, 0]) == [2, 1, 1]
    assert choose_sizes([1, 3], 4, None, None, [2]) == [1, 3]
    assert choose_sizes(None, 9, 3, None, [5, 1]) == [2, 4, 3]
    assert choose_sizes(None, 9, 3, [3, 3, 3], [5, 1]) == [2, 4, 3]
    assert choose_sizes(None, 2, 1, None, [1, 0]) == [2]
    assert choose_sizes(None, 4, None, None, [1, 0, 2]) == [3, 1]
    assert choose_sizes(None, 2, None, None, [1, 0]) == [2]


def test_cluster_files_are_read(small_cluster: dict[str, Any], write: Callable[[str, Any], Path]) -> None:
    cluster = load_cluster(str(write("c.json", small_cluster)))
    assert cluster.names == ["n0", "n1", "n2", "n3"]
    assert cluster.forward_s.dtype == np.float64
    assert cluster.memory.tolist() == [4, 4, 4, 4]
    expected = np.full((4, 4), 0.001 + 1e6 / 1e9)
    np.fill_diagonal(expected, 0.0)
    assert np.allclose(cluster.transfer_matrix(), expected)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"stages": [[0, 1]', "invalid JSON"),
        ("[]", "expected a JSON object, got a JSON array"),
        ("{}", "stages: expected a list of lists of node numbers, got nothing"),
        ('{"stages": 3}', "stages: expected a list, got 3"),
        ('{"stages": [0, 1]}', "stages[0]: expected a list, got 0"),
        ('{"stages": [[0], [1.5]]}', "stages[1][0]: expected an integer of at least 0, got 1.5"),
        ('{"stages": [[true]]}', "stages[0][0]: expected an integer of at least 0, got True"),
        ('{"stages": [[-1]]}', "stages[0][0]: expected an integer of at least 0, got -1"),
        ('{"stages": [[NaN]]}', "expected finite numbers, got NaN"),
        ('{"stages": [[0]], "absent_stages": 2}', "absent_stages: expected a list, got 2"),
        ('{"stages": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"stages": [[' + "9" * 5000 + "]]}", "digits"),
    ],
)
def test_allocation_files_are_refused_with_file_and_key(
    content: str, said: str, write: Callable[[str, Any], Path]
) -> None:
    path = write("stages.json", content)
    with pytest.raises(InputError) as caught:
        read_allocation(str(path))
    assert str(caught.value).startswith(f"{path}:")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte-order-mark"])
@pytest.mark.parametrize("name", ["Zürich", "日本 1", "a'b\"c", "👩\u200d💻"])
def test_names_of_any_script(
    name: str, mark: str, small_cluster: dict[str, Any], write: Callable[[str, Any], Path]
) -> None:
    small_cluster["nodes"][1]["name"] = name
    assert load_cluster(str(write("c.json", mark + json.dumps(small_cluster)))).names[1] == name
    assert read_allocation(str(write("s.json", mark + '{"stages": [[0], [1]]}'))).stages == [[0], [1]]


@pytest.mark.parametrize("letter", ["\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u202e", "\u2066", "\u2028", "\u200f"])
def test_names_that_disturb_a_terminal_are_refused(
    letter: str, small_cluster: dict[str, Any], write: Callable[[str, Any], Path]
) -> None:
    small_cluster["nodes"][2]["name"] = f"a{letter}b"
    path = write("c.json", small_cluster)
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(f"{path}: nodes[2].name: expected ")
    assert '"a\\' in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("path", "key", "said"),
    [
        ((), "bandwith", ": bandwith: unknown key; "),
        ((), "bandwith", "; did you mean bandwidth?"),
        (("nodes", 2), "forwards_s", ": nodes[2].forwards_s: unknown key; "),
        (("nodes", 2), "forwards_s", "; did you mean forward_s?"),
        (("nodes", 0), "colour", "known are name, forward_s, backward_s, loss_s, memory"),
        ((), "\x1b[31m\n\u202e`, expected `", "\\u{1b}[31m\\n\\u{202e}`, expected `: unknown key"),
        ((), "x" * 100_000, "xxx...: unknown key"),
    ],
)
def test_unknown_keys_are_refused(
    path: tuple[Any, ...], key: str, said: str, small_cluster: dict[str, Any], write: Callable[[str, Any], Path]
) -> None:
    target: Any = small_cluster
    for step in path:
        target = target[step]
    target[key] = None
    with pytest.raises(InputError) as caught:
        load_cluster(str(write("c.json", small_cluster)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1:0: the text ends within a value"),
        ('{"format": "skippipe.cluster/1",\n "nodes": [', ":2:11: nodes: the text ends within a list"),
        (
            '{"format": "skippipe.cluster/1",\n "norm_s": NaN}',
            ':2:12: norm_s: expected a value, got "NaN"',
        ),
        ('{"norm_s": 1e999}', ":1:16: norm_s: number out of range"),
        ('{"norm_s": 1, "norm_s": 2}', ":1:22: duplicate key `norm_s`"),
        ('{"format": "skippipe.cluster/1"} {}', "missing field `nodes`"),
        ("{'format': 1}", ":1:2: key must be a string"),
        ('{"nodes": [{"name": ' + "[" * 100_000, "nodes[0].name: invalid type: list, expected a string"),
        ("[" * 100_000, ":1:0: invalid type: list, expected an object"),
        ('{"source": {"url": "x"}}', "source: invalid type: object, expected a string"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text: str, said: str, write: Callable[[str, Any], Path]) -> None:
    path = write("c.json", text)
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(f"{path}:")
    assert said in str(caught.value)


@settings(derandomize=True, database=None, max_examples=300)
@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    """Bytes that are lost, doubled or exchanged: never anything but a cluster or an `InputError` of one line."""
    config = synthetic(nodes=4, regions=2)
    text = synthetic_cluster(config).cluster(config).to_json()
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(begin + 40, len(text))))
        put = data.draw(
            st.sampled_from(["", "[", "]", "{", "}", '"', ",", "-", "1e9", "null", "\\u0000", text[begin:end] * 2])
        )
        text = text[:begin] + put + text[end:]
    said = "one line"
    try:
        assert len(Cluster.from_json(text)) > 0
    except InputError as error:
        said = str(error)
    assert len(said.splitlines()) == 1


def test_transfers_without_the_matrix_over_all_nodes() -> None:
    for config in (synthetic(nodes=17, regions=5), synthetic(nodes=9, regions=9), synthetic(nodes=3, regions=1)):
        parts = synthetic_cluster(config)
        cluster = parts.cluster(dataclasses.replace(config, activation_bytes=1e6, overhead_s=0.25))
        whole, count = cluster.transfer_matrix(), len(cluster)
        nodes = np.random.default_rng(count).permutation(count)
        senders, receivers = nodes[: count // 2 + 1].tolist(), nodes[count // 2 :].tolist()
        assert np.array_equal(cluster.transfer_times(senders, receivers), whole[np.ix_(senders, receivers)])
        for some in (senders, receivers, [0], []):
            expected = whole[np.ix_(some, some)].max() if len(some) > 1 else None
            assert cluster.slowest_transfer(some) == expected
        with pytest.raises(InputError, match=rf"nodes\[1\]: expected a number in 0..{count - 1}, got {count}"):
            cluster.slowest_transfer([0, count])
