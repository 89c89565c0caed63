"""Specification of a corpus: settings and input files, to tell whether an unfinished preparation can resume."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skippipe.data.config import DataConfig
from skippipe.data.corpus import SPLITS, Split
from skippipe.data.inputs import Inputs

FACTS = ("name", "bytes", "modified")


@dataclass(frozen=True)
class CorpusSpec:
    """Settings and inputs, JSON-serialisable."""

    settings: dict[str, Any]
    files: dict[Split, list[dict[str, Any]]]
    """name, bytes and modification time of each"""

    @staticmethod
    def of(config: DataConfig, inputs: Inputs, tokenizer_json: str | None, revision: str | None) -> "CorpusSpec":
        """Make the specification; `tokenizer_json`: None where one is trained, `revision`: of a dataset of the hub."""
        tokenizer = None if tokenizer_json is None else hashlib.sha256(tokenizer_json.encode()).hexdigest()
        settings = {
            "format": config.format,
            "field": config.field,
            "hub": config.hub,
            "hub_configuration": config.hub_configuration,
            "revision": revision,
            "tokenizer": tokenizer,
            "vocabulary": config.vocabulary,
        }
        return CorpusSpec(settings, {split: [_facts(asdict(file)) for file in inputs[split]] for split in SPLITS})

    @staticmethod
    def read(content: dict[str, Any]) -> "CorpusSpec":
        """Read the specification in `corpus.json` or `progress.json`; raises `KeyError` or `TypeError`."""
        return CorpusSpec(dict(content["settings"]), {s: [_facts(x) for x in content[s]["files"]] for s in SPLITS})

    def to_json(self, more: dict[Split, dict[str, Any]], documents: Mapping[Split, Sequence[int]]) -> dict[str, Any]:
        """Serialise it, with `more` about each split and the number of documents of each file."""
        files = {
            split: [{**file, "documents": n} for file, n in zip(self.files[split], documents[split], strict=True)]
            for split in SPLITS
        }
        return {"settings": self.settings, **{split: {**more[split], "files": files[split]} for split in SPLITS}}

    def difference(self, other: "CorpusSpec") -> str | None:
        """Describe the first difference from `other`; None if there is none."""
        for name, value in self.settings.items():
            if other.settings.get(name) != value:
                return f"data.{name} was {value!r}, is now {other.settings.get(name)!r}"
        for split in SPLITS:
            then = {file["name"]: file for file in self.files[split]}
            now = {file["name"]: file for file in other.files[split]}
            changed = [name for name, file in then.items() if now.get(name) != file]
            if changed:
                what = "has changed" if changed[0] in now else "is missing"
                return f"data.{split}: {changed[0]} {what}"
            new = [name for name in now if name not in then]
            if new:
                return f"data.{split}: {new[0]} is new"
            if list(then) != list(now):
                return f"data.{split}: files in another order"
        return None


def _facts(file: dict[str, Any]) -> dict[str, Any]:
    return {name: file[name] for name in FACTS}
