"""What training assumes of messages that share a link."""

import dataclasses
from typing import Any

from train.jobs import make_cluster, make_job

from skippipe.config import LinkProfile
from skippipe.model.settings import model_config
from skippipe.plan_file import Plan
from skippipe.train.prepare.planning import on_ranks, plan_phase
from skippipe.train.prepare.prediction import judge_prediction
from skippipe.train.prepare.stages import PartitionedModel, partition_model
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec

RANKS = [0, 1, 2, 3]


def planned(stated: str, **settings: Any) -> tuple[RunSpec, PartitionedModel, Plan]:
    """The plan of a run on a cluster with slow links that states `stated`."""
    cluster = make_cluster()
    cluster.inside = cluster.between = LinkProfile(0.001, 1e5)
    cluster.contention = stated
    spec = resolve(make_job(cluster=cluster, **settings))
    model = partition_model(spec, model_config(spec.model.settings))
    return spec, model, plan_phase(spec, spec.phases[0], spec.layout.cluster, model, RANKS)


def test_messages_share_real_links() -> None:
    for stated, expected in (("none", "link"), ("link", "link"), ("uplink", "uplink")):
        _, _, plan = planned(stated)
        assert (plan.cluster.contention, plan.assumptions.contention) == (expected, expected)


def test_emulated_links_are_shared_as_the_cluster_says_unless_settings_do() -> None:
    for stated in ("none", "link", "uplink"):
        assert planned(stated, runtime__links="emulated")[2].cluster.contention == stated
    assert planned("uplink", runtime__links="emulated", runtime__contention="link")[2].cluster.contention == "link"


def test_a_given_plan_that_assumed_free_links_is_predicted_anew() -> None:
    spec, model, plan = planned("uplink")
    free = plan.with_contention("none")
    assert free.predicted.iteration_s < plan.predicted.iteration_s
    spec = dataclasses.replace(spec, layout=dataclasses.replace(spec.layout, plan=free))
    here = on_ranks(spec, free, RANKS)
    assert here.predicted == free.with_contention("link").predicted
    note = judge_prediction(here, model, spec, None).note
    assert ("messages take turns: none by the plan, link here" in note) == (here.predicted != free.predicted)
    assert free.predicted.iteration_s <= here.predicted.iteration_s <= plan.predicted.iteration_s
