"""What the installed package carries beside its modules."""

from importlib import metadata, resources
from pathlib import Path

from conftest import ROOT
from omegaconf import OmegaConf

NEEDED = [
    "py.typed",
    "_scheduler.pyi",
    "presets/regions12.json",
    "proposal/costs.json",
    "report/page/page.html",
    "report/page/page.css",
    "report/page/main.js",
    "conf/cluster/geo20.yaml",
    "conf/cluster/local4.yaml",
    "conf/schedule/reference.yaml",
    "conf/planner/default.yaml",
    "conf/model/llama_tiny.yaml",
    "conf/data/shipped.yaml",
    "conf/data/sotu.yaml",
    "conf/runtime/gloo.yaml",
    "conf/train/default.yaml",
    "conf/study/llama30m.yaml",
    "data/tokenizer.json",
    "data/text/README.md",
    "data/text/validation/1950-Truman-1.txt",
    "conf/hydra/output/in_place.yaml",
]


def test_data_files_are_there() -> None:
    package = resources.files("skippipe")
    assert [name for name in NEEDED if not package.joinpath(name).is_file()] == []


def test_every_preset_says_where_its_figures_come_from() -> None:
    for preset in resources.files("skippipe").joinpath("conf/cluster").iterdir():
        if preset.name.endswith(".yaml"):
            content = OmegaConf.create(preset.read_text(encoding="utf-8"))
            assert OmegaConf.select(content, "source"), preset.name


def test_base_install_asks_for_no_torch() -> None:
    requirements = metadata.requires("skippipe") or []
    base = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert base
    assert not [requirement for requirement in base if requirement.startswith(("torch", "transformers", "datasets"))]
    assert [requirement for requirement in requirements if requirement.startswith("torch>=")]


def test_conf_is_a_relative_link_to_the_real_folder() -> None:
    link = ROOT / "conf"
    assert link.is_symlink()
    assert link.readlink() == Path("skippipe/conf")
    assert (link / "cluster" / "geo20.yaml").is_file()
    assert not (ROOT / "skippipe" / "conf").is_symlink()
