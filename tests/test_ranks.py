"""Nodes are matched to ranks by name, and by nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skippipe.errors import InputError
from skippipe.ranks import NO_RANK, assign_ranks, node_title


def test_ranks_serve_what_they_name() -> None:
    assert assign_ranks(["a", "b", "c"], [["b"], ["c", "a"]]) == [1, 0, 1]


@pytest.mark.parametrize(
    ("names", "by_rank", "said"),
    [
        (["a", "b"], [["a"]], "no rank serves: b"),
        (["a"], [["a"], ["x"]], "not in the plan: x"),
        (["a", "b"], [["a"], ["a", "b"]], "named more than once: a (ranks 0, 1)"),
        (["a", "b"], [["a", "a"], ["b"]], "named more than once: a (ranks 0, 0)"),
        (["a", "a"], [["a"]], "the plan names two nodes alike: a"),
        (["a"], [["a"], []], "rank 1: expected at least one node name, got none"),
        (["a", "b", "c"], [], "no rank serves: a, b, c"),
        (["a"], [["A"]], "not in the plan: A"),
    ],
)
def test_mismatches_are_refused_by_name(names: list[str], by_rank: list[list[str]], said: str) -> None:
    with pytest.raises(InputError) as caught:
        assign_ranks(names, by_rank)
    assert said in str(caught.value)


@settings(derandomize=True, database=None)
@given(st.data())
def test_every_partition_is_matched(data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    used = sorted(set(ranks))
    wanted = [used.index(rank) for rank in ranks]
    names = [f"node-{i}" for i in range(len(ranks))]
    by_rank = [[names[i] for i in range(len(names)) if wanted[i] == rank] for rank in range(len(used))]
    assert assign_ranks(names, by_rank) == wanted


def test_ranks_are_called_by_their_nodes() -> None:
    assert node_title(("london-0", "paris-1"), 3) == "node london-0, paris-1 (rank 3)"
    assert node_title((), 3) == "rank 3"


def test_nobody_serves_a_node_that_is_left_out() -> None:
    assert assign_ranks(["a", "b", "c"], [["c"], ["a"]], ["b"]) == [1, NO_RANK, 0]
    # A rank may name it beside another one.
    assert assign_ranks(["a", "b", "c"], [["c", "b"], ["a"]], ["b"]) == [1, NO_RANK, 0]


def test_a_rank_for_left_out_nodes_alone_is_refused() -> None:
    with pytest.raises(InputError, match=r"the plan leaves these nodes out.*: node b \(rank 1\)$"):
        assign_ranks(["a", "b", "c"], [["a", "c"], ["b"]], ["b"])
