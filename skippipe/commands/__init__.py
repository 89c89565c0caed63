"""The commands. Each is registered here, once; its module is imported only when it runs."""

from collections.abc import Sequence

from skippipe.commands.command import Command

TRAINING = ("torch", "transformers", "datasets", "tensorboard")
TRAINING_GROUPS = {
    "cluster": "local4",
    "schedule": "skippipe",
    "phases": "published",
    "planner": "default",
    "model": "llama_tiny",
    "data": "shipped",
    "runtime": "gloo",
    "train": "default",
    "experiment": None,
}
PRESETS = ("geo20", "local4", "five_clusters", "single_cluster", "synthetic")


def _training_command(  # noqa: PLR0913 - by keyword
    *, name: str, summary: str, settings: str, main_keys: Sequence[str], notes: str, examples: str
) -> Command:
    """A command that trains, by whichever launcher."""
    return Command(
        name=name,
        summary=summary,
        settings=settings,
        run="skippipe.commands.train:train",
        groups=TRAINING_GROUPS,
        packages=TRAINING,
        writes={"folder": "runs"},
        flags={"--dry-run": "dry_run=true"},
        texts=("runtime.node",),
        main_keys=main_keys,
        notes=notes,
        examples=examples,
    )


def _instances(*presets: str) -> dict[str, str | None]:
    return {f"cluster@instances.{preset}": preset for preset in presets}


COMMANDS = (
    Command(
        name="plan",
        summary="find routes and an execution order for one iteration; print the result, write the plan",
        settings="skippipe.config:PlanJob",
        run="skippipe.commands.plan:plan",
        groups={"cluster": "geo20", "schedule": "skippipe", "phases": "published", "planner": "default"},
        main_keys=(
            "cluster=",
            "cluster.file",
            "allocate.stages",
            "allocate.sizes",
            "allocate.layers",
            "schedule.strategy",
            "schedule.skip_ratio",
            "schedule.stages",
            "schedule.microbatches_per_source",
            "planner.time_limit_s",
            "planner.seed",
            "compare",
            "output",
        ),
        notes="""\
Skipping pays where the later stages are the bottleneck: stage 0 runs every microbatch, so with one node per stage
stage 0 is the bottleneck, and skipping cannot help. Give stage 0 more nodes than each later stage.""",
        examples="""\
skippipe plan                                          20 nodes in 12 cloud regions
skippipe plan cluster=local4 output=plan.json          another preset; write the plan
skippipe plan cluster.file=my.json allocate.sizes=[4,2,2]
skippipe plan compare=[full,random-skip]               what does skipping save, and what routing?
skippipe plan allocate.sources=[0,1,2,6,10] allocate.max_replica_transfer_s=4
skippipe plan cluster=synthetic cluster.speed_spread=4 allocate.layers=auto allocate.decoder_layers=24
                                                       fit layers and nodes of each stage to unequal nodes
skippipe plan cluster=synthetic cluster.nodes=40 cluster.seed=3 planner.time_limit_s=5
skippipe plan phases=grow                              a plan for each phase: first half of the stages, then all
skippipe plan cluster=local4 planner.method=cbs        search until the plan is proved optimal
skippipe plan schedule=reference schedule.stages=6     the rules of the reference implementation
skippipe plan -m schedule.skip_ratio=0,0.25,0.5 output=plan.json
                                                       a sweep; plans go to multirun/DATE/TIME/N""",
    ),
    Command(
        name="propose",
        summary="propose phases: the least predicted time to the full pipeline's loss, by measured costs",
        settings="skippipe.config:ProposeJob",
        run="skippipe.commands.propose:propose",
        groups={"cluster": "geo20", "schedule": "skippipe", "planner": "default"},
        packages=("mpmath",),
        notes="""\
Losses are measured ones (skippipe/proposal/costs.json, or a file of your own), times are predicted for the cluster.
Depth, tokens and shares have to be among the measured ones: nothing is extrapolated.""",
        examples="""\
skippipe propose depth=16                              for 16 layers with the node times of geo20
skippipe propose cluster=five_clusters depth=16 tokens=150e6 output=proposal.json
skippipe propose cluster.file=my.json costs=mine.json planner.time_limit_s=10""",
    ),
    Command(
        name="simulate",
        summary="run a plan through the event simulator",
        settings="skippipe.config:SimulateJob",
        run="skippipe.commands.simulate:simulate",
        examples="""\
skippipe simulate plan=plan.json
skippipe simulate plan=plan.json order=dispatch output=dispatched.json""",
    ),
    Command(
        name="churn",
        summary="simulate a run whose nodes come and go: what do policies make of it?",
        settings="skippipe.config:ChurnJob",
        run="skippipe.commands.churn:churn",
        writes=dict.fromkeys(("output", "picture")),
        notes="""\
recover   as training does: the others go on by another plan; nodes that are back take part after the next restart
join      the same, and nodes that are back join between two iterations (training does not do so yet)
restart   a loss ends all; they start again from the latest checkpoint with the nodes that are up
redundant each node also computes the forward of the stage after its own, and does its work when it is lost""",
        examples="""\
skippipe churn plan=plan.json                          a day in which each node is lost every six hours
skippipe churn plan=plan.json mean_up_s=3600 mean_down_s=600 hours=48 picture=churn.png
skippipe churn plan=plan.json trace=mine.json policies=[recover,restart] restart_s=120 output=churn.json
skippipe churn -m plan=plan.json mean_up_s=3600,7200,14400 'policies=[recover]'""",
    ),
    Command(
        name="report",
        summary="explain a plan: bottlenecks, upgrade advice, HTML timeline",
        settings="skippipe.config:ReportJob",
        run="skippipe.commands.report:report",
        writes=dict.fromkeys(("output", "picture", "curve", "map", "json")),
        examples="""\
skippipe report plan=plan.json                         print the bottlenecks; write report.html
skippipe report plan=plan.json compare=other.json      two plans on one time axis
skippipe report plan=plan.json replan=true             what would new plans save with the first upgrades?
skippipe report plan=plan.json picture=gantt.png curve=search.png map=map.png json=report.json
xdg-open 'report.html#task=3F1&critical=1'             a task, its microbatch's route, and the critical path""",
    ),
    Command(
        name="measure",
        summary="measure nodes and links, and write them as a cluster file",
        settings="skippipe.train.measuring.config:MeasureJob",
        run="skippipe.commands.measure:measure",
        groups={"cluster": "local4", "model": "llama_tiny", "runtime": "gloo"},
        without_effect=(
            "cluster.stage_sizes",
            "cluster.activation_bytes",
            "cluster.gradient_bytes",
            "cluster.processors",
            "cluster.contention",
            "cluster.source",
            "cluster.workload",
            "cluster.node",
            "cluster.speed_spread",
            "cluster.memory_spread",
            "runtime.link_changes",
            "runtime.recover",
            "runtime.lost_stage",
            "runtime.max_slowdown",
            "runtime.restarts",
            "runtime.calibrate",
            "runtime.group",
            "runtime.cuda_graphs",
            "runtime.profile",
        ),
        packages=("torch", "transformers"),
        texts=("runtime.node",),
        notes="""\
Settings that training has too are called the same, and are to have the values of the training to come: model, sequence
and microbatch size, dtypes, compilation, checkpointing, device. On its own, it starts one process per node of the
cluster preset on this machine. Under torchrun each process is one rank, for the nodes named by runtime.node. Needs
the extra that installs torch: pip install 'skippipe[train]'. Settings of cluster and runtime that are not listed here
may be given as for training, and change nothing.""",
        examples="""\
skippipe measure output=mine.json                   four processes of this machine, a small Llama
skippipe plan cluster.file=mine.json output=plan.json && skippipe train plan=plan.json
skippipe measure model=pretrained model.folder=FOLDER data.sequence=1024 train.microbatch_size=2 output=mine.json
skippipe measure -m train.microbatch_size=1,2,4 'output=/figures/${train.microbatch_size}.json'
                                                       several sizes, each in a file of its own
torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    -m skippipe measure runtime.node=NAME output=mine.json
                                                       on every machine, with its own name; rank 0 writes""",
    ),
    _training_command(
        name="train",
        summary="train a model by a plan, on this machine or, under torchrun, on many",
        settings="skippipe.train.config:TrainJob",
        main_keys=(
            "model",
            "data=",
            "data.training",
            "data.validation",
            "data.prepared",
            "data.sequence",
            "plan",
            "cluster=",
            "schedule.skip_ratio",
            "schedule.microbatches_per_source",
            "train.layers",
            "train.iterations",
            "train.microbatch_size",
            "train.learning_rate",
            "train.seed",
            "train.validate_every",
            "runtime.device",
            "runtime.node",
            "folder",
            "dry_run",
        ),
        notes="""\
On its own, it starts one process per node of the plan on this machine, and ends them all when one fails. Ctrl-C,
SIGTERM, SIGHUP and SIGUSR1 end it after the current iteration, with a checkpoint; a second Ctrl-C or SIGTERM ends it at
once. A signal that arrives before anything was trained ends it with exit status 128 plus its number, such as 143 after
SIGTERM. Under torchrun each process is one rank of the job; it serves the nodes named by runtime.node. Needs the extra
that installs torch: pip install 'skippipe[train]'.""",
        examples="""\
skippipe train                                         a small Llama on four processes of this machine
skippipe train schedule.skip_ratio=0                   the same with the full pipeline
skippipe train phases=grow train.new_layers=copy       half of the stages for half of the run, then all
skippipe train model=mixtral_tiny train.iterations=200
skippipe train model=pretrained model.folder=FOLDER
                                                       start from a model in the format of transformers
skippipe train data.training=[my/*.txt] data.validation=[held-out.txt]
skippipe train folder=runs/mine                        starts, or resumes after any interruption
skippipe train folder=runs/mine schedule.skip_ratio=0  resumes with another plan
skippipe plan cluster=local4 output=plan.json && skippipe train plan=plan.json
skippipe train --dry-run plan=plan.json                validate the configuration and estimate memory
skippipe train experiment=llama30m_33 data.prepared=my-text
                                                       one run of a study (skippipe study runs all of them)
torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    -m skippipe.train plan=plan.json runtime.node=NAME on every machine, with its own name
torchrun --nproc-per-node 4 -m skippipe.train 'runtime.node=local-${oc.env:RANK}'""",
    ),
    _training_command(
        name="node",
        summary="train as one machine of several, any of which may be lost",
        settings="skippipe.train.config:NodeJob",
        main_keys=(
            "rendezvous",
            "runtime.node",
            "plan",
            "folder",
            "runtime.heartbeat_s",
            "runtime.recover",
            "runtime.lost_stage",
            "runtime.restarts",
            "runtime.start_timeout_s",
            "dry_run",
        ),
        notes="""\
The same command on every machine, with the settings of skippipe train. Each node of the plan is a process; runtime.node
names those of this machine (default: its host name). Training begins once all nodes have come. Where nodes are lost and
every stage has one left, the others go on; otherwise runtime.lost_stage decides, by default that all machines start
again from the latest checkpoint. The machine with the address of the rendezvous serves it, and has to stay. All
machines see the folder of the run, and hold the same checkpoint key. Needs the extra that installs torch:
pip install 'skippipe[train]'.""",
        examples="""\
skippipe node rendezvous=anna:29400 plan=plan.json folder=runs/mine
                                                       on every machine, each named as a node of the plan
skippipe node rendezvous=10.0.0.1:29400 plan=plan.json folder=runs/mine runtime.node=gpu-0,gpu-1
                                                       a machine of two nodes
skippipe node --dry-run rendezvous=anna:29400 plan=plan.json folder=runs/mine
                                                       validate the configuration and estimate memory""",
    ),
    Command(
        name="evaluate",
        summary="measure perplexity with stages or layers omitted",
        settings="skippipe.evaluate.config:EvaluateJob",
        run="skippipe.commands.evaluate:evaluate",
        groups={"data": "shipped"},
        packages=("torch", "transformers", "safetensors", "tokenizers", "matplotlib"),
        aliases={"model": "model_folder"},
        main_keys=(
            "checkpoint",
            "model_folder",
            "omit",
            "unit",
            "draws",
            "data.training",
            "data.validation",
            "device",
            "output",
            "compare",
        ),
        examples="""\
skippipe evaluate checkpoint=runs/mine output=evaluation
skippipe evaluate checkpoint=runs/mine omit=[random:0.25,random:0.5,last:2,swaps:1] draws=50 output=evaluation
skippipe evaluate checkpoint=runs/mine omit=[lost:1,stages:1+2] data.prepared=my-text output=lost
skippipe evaluate model=FOLDER layers=[2,2,2] unit=stages output=of-folder
skippipe evaluate compare=[evaluation-of-a,evaluation-of-b] output=both
                                                       several models in one table and one plot""",
    ),
    Command(
        name="study",
        summary="run and compare many trainings on all GPUs of this machine",
        settings="skippipe.study.config:StudyJob",
        run="skippipe.commands.study:study",
        groups={"study": "llama30m"},
        packages=(*TRAINING, "matplotlib"),
        writes=dict.fromkeys(("records", "folder")),
        flags={"--dry-run": "dry_run=true"},
        examples="""\
skippipe data prepare data=study output=study-text     the text of all runs, once
skippipe study                                         all unfinished runs, one at a time per GPU
skippipe study minutes=25 prepared=FOLDER              for 25 minutes, on a text elsewhere; resume later
skippipe study --dry-run                               what would run where
skippipe study minutes=0                               rewrite records, page and figures
skippipe study 'arms=[{experiment: llama30m_25, seed: 3}]' records=mine.json
skippipe study 'overrides=["train.iterations=500"]' records=short.json folder=short
skippipe study --config-dir mine 'arms=[{experiment: my_arm}]' records=mine.json
                                                       your own settings in mine/experiment/my_arm.yaml""",
    ),
    Command(
        name="data prepare",
        summary="tokenise a text once, into a folder that training reads",
        settings="skippipe.data.config:PrepareJob",
        run="skippipe.commands.data_prepare:data_prepare",
        groups={"data": "shipped"},
        packages=("datasets", "tokenizers"),
        examples="""\
skippipe data prepare data.training=[my/*.txt] data.vocabulary=8192 output=mine
skippipe data prepare data.training=[a.jsonl.gz] data.validation=[b.parquet] data.field=body \\
    data.tokenizer=folder/tokenizer.json output=mine
skippipe data prepare data=sotu output=sotu            a corpus that `skippipe data fetch` has fetched
skippipe data prepare data.hub=NAME data.training=[train] data.validation=[test] output=mine
skippipe train data.prepared=mine model.vocab_size=8192""",
    ),
    Command(
        name="data fetch",
        summary="fetch a corpus of freely available texts",
        settings="skippipe.data.config:FetchJob",
        run="skippipe.commands.data_fetch:data_fetch",
        # Each corpus goes to a folder named after it, which only one process at a time fills.
        writes={},
        examples="""\
skippipe data fetch corpus=sotu
skippipe data fetch corpus=debian_docs folder=texts    needs apt-get and dpkg""",
    ),
    Command(
        name="export",
        summary="write a trained model as a folder in the format of transformers",
        settings="skippipe.model.config:ExportJob",
        run="skippipe.commands.export:export",
        packages=("torch", "transformers", "safetensors", "tokenizers"),
        examples="""\
skippipe export checkpoint=runs/mine output=my-model   the latest checkpoint of a run
skippipe export checkpoint=runs/mine/checkpoints/iteration-000100 output=my-model dtype=bfloat16
skippipe train model=pretrained model.folder=my-model  and train it further""",
    ),
    Command(
        name="bench simulator",
        summary="measure the simulator: evaluations per second",
        settings="skippipe.config:BenchSimulatorJob",
        run="skippipe.commands.bench:bench_simulator",
        groups=_instances("geo20", "five_clusters"),
        aliases={"data": "folder"},
        examples="""\
skippipe bench simulator
skippipe bench simulator seconds=5 output=simulator.json""",
    ),
    Command(
        name="bench planner",
        summary="measure the planner on a fixed set of instances",
        settings="skippipe.config:BenchPlannerJob",
        run="skippipe.commands.bench:bench_planner",
        groups=_instances(*PRESETS) | {"planner": "default"},
        aliases={"data": "folder"},
        examples="""\
skippipe bench planner planner.time_limit_s=5 output=planner.json
skippipe bench planner data=FOLDER                     your own instances as well
skippipe bench planner set=small strategies=[skippipe] small instances with proved optima, in a checkout
skippipe bench planner set=FOLDER checker=check.py     only your own, each plan checked by a script""",
    ),
    Command(
        name="bench allocator",
        summary="measure the node allocator against greedy and random allocation",
        settings="skippipe.config:BenchAllocatorJob",
        run="skippipe.commands.bench:bench_allocator",
        groups=_instances(*PRESETS),
        aliases={"data": "folder"},
        examples="""\
skippipe bench allocator
skippipe bench allocator seconds=10 threads=2 output=allocator.json
skippipe bench allocator data=FOLDER                   your own clusters as well""",
    ),
    Command(
        name="bench figure3",
        summary="all strategies over models, networks, microbatch sizes and skip ratios: the paper's Figure 3",
        settings="skippipe.bench.figure3.config:BenchFigure3Job",
        run="skippipe.commands.bench_figure3:bench_figure3",
        writes={"output": "figure3"},
        notes="""\
All nodes are equal; times and sizes follow from the shape of the model (docs/figure3.md). Two comparisons: each
strategy with its own best allocation, and all on that of full. An interrupted figure goes on where it was.""",
        examples="""\
skippipe bench figure3                                 all of it, half an hour of one core; tables and charts
skippipe bench figure3 networks=[geo20] models=[1.5b] tokens=[4096] companion.kinds=[]
                                                       a part of it
skippipe bench figure3 networks=[geo20] models=[1.5b] measure.iterations=3
                                                       its plans executed on emulated links (needs torch)
skippipe bench figure3 all_reduce=[true] output=reduced
                                                       with the all-reduce of gradients""",
    ),
)
"""In the order of the program's help."""

BY_NAME = {command.name: command for command in COMMANDS}


def find_command(words: Sequence[str]) -> Command | None:
    """The command whose name `words` begin with; None where there is none."""
    return next((each for each in COMMANDS if list(words[: len(each.name.split())]) == each.name.split()), None)
