"""Runs over emulated links: what is learned is the same, and settings that contradict each other are refused."""

from typing import Any

import pytest
from pool import Pool
from train.alone import of_kind, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job

from skippipe.cluster import load_cluster
from skippipe.config import LinkProfile
from skippipe.errors import InputError
from skippipe.plan_file import load_plan
from skippipe.train.resolve.resolve import resolve

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]
EMULATED: dict[str, Any] = {"runtime__links": "emulated"}


def test_losses_are_bit_equal_and_calibration_measures_the_emulated_network(folder: Folder, pool: Pool) -> None:
    """With replicas, so that the ring runs over emulated links too; the same plan over real ones."""
    cluster = make_cluster()
    cluster.inside = cluster.between = LinkProfile(0.04, 1e7)
    base: dict[str, Any] = {"cluster": cluster, "train__iterations": 2}
    links: dict[str, Any] = {**EMULATED, "runtime__time_scale": 0.1, "runtime__contention": "uplink"}
    path = folder("emulated")
    emulated = train_in_pool(pool, make_job(**base, **links, runtime__calibrate=True), FOUR, path)
    real = train_in_pool(pool, make_job(**base, plan=str(path / "plan.json")), FOUR, folder("real"))
    for kind, count in (("iteration", 2), ("validation", 2)):
        theirs, ours = ([event["loss"] for event in of_kind(run, kind)] for run in (real, emulated))
        assert theirs == ours
        assert len(ours) == count
    plan = load_plan(path / "plan.json")
    assert plan.assumptions.contention == "uplink"
    (here,), (there,) = (of_kind(run, "plan") for run in (emulated, real))
    assert (here["predicted_s"], here["prediction_note"]) == (plan.predicted.iteration_s, "")
    # The plan's cluster says that uplinks are shared; nothing is known here that would say otherwise.
    assert (there["predicted_s"], there["prediction_note"]) == (here["predicted_s"], "")
    measured = load_cluster(str(path / "cluster.json"))
    for i in range(4):
        for j in range(4):
            if i != j:
                assert measured.transfer_matrix(0)[i, j] >= 0.1 * 0.04


@pytest.mark.parametrize(("name", "value"), [("time_scale", 0.5), ("contention", "link")])
def test_settings_of_emulated_links_need_them(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"runtime\.{name}: expected .* with runtime\.links=real, got {value}"):
        resolve(make_job(**{f"runtime__{name}": value}))
    spec = resolve(make_job(**EMULATED, **{f"runtime__{name}": value}))
    assert getattr(spec.communication, name) == value
    assert f"runtime.{name}" in spec.shared_settings, "equal on all ranks"
