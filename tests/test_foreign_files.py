"""Files of others: whatever they hold is refused with one message that names the file, or is what it seems to be.

`pytest tests/test_foreign_files.py --hypothesis-profile=long --timeout=0` makes a million executions of the
readers and 10,000 compositions of settings.
"""

import contextlib
import copy
import functools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skippipe.application import compose
from skippipe.application.hydra_errors import setting_keys
from skippipe.checkpoint.manifest import MANIFEST, FileRecord, Manifest, read_manifest
from skippipe.cluster import Cluster, load_cluster
from skippipe.commands import COMMANDS
from skippipe.errors import InputError
from skippipe.plan_file import Plan, load_plan

SEEDS = Path(__file__).parent.parent / "scheduler_rs" / "fuzz" / "seeds"
KEY = b"k" * 32
NUMBERS = [0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e-300, 1e18, 1e300, math.inf, math.nan]
STRANGE: list[Any] = [*NUMBERS, None, True, [], {}, [[]], "", "n0", "full", "skippipe.plan/1", "\ud800", "a" * 1000]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Container and key of everything that a JSON value holds."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    inner = [place for key in keys if isinstance(value[key], dict | list) for place in places(value[key])]
    return [(value, key) for key in keys] + inner


def change(content: Any, rng: random.Random) -> None:
    """Change one value of an object, in place."""
    found = places(content)
    if not found:
        return
    container, key = rng.choice(found)
    value = container[key]
    kind = rng.randrange(6)
    if kind == 0:
        del container[key]
    elif kind == 1:
        other, name = rng.choice(found)
        container[key] = json.loads(json.dumps(other[name])) if name in range(len(other)) or name in other else None
    elif kind == 2 and isinstance(value, list) and value:
        value.append(json.loads(json.dumps(rng.choice(value))))
    elif kind in (2, 3) and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**70:
        container[key] = value + rng.choice([-1, 1, 0.5]) if kind == 2 else value * rng.uniform(-0.5, 2)
    elif kind == 4 and isinstance(container, dict):
        container[rng.choice(["", str(key) + "x", "é"])] = copy.deepcopy(rng.choice(STRANGE))
    else:
        container[key] = copy.deepcopy(rng.choice(STRANGE))


def changed(text: str, seed: int) -> bytes:
    """A text with some of its values changed, or some of its bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.8:
        content = json.loads(text)
        for _ in range(rng.randint(1, 3)):
            change(content, rng)
        return json.dumps(content, ensure_ascii=rng.random() < 0.9).encode(errors="surrogatepass")
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        data[at : at + rng.choice([0, 1, 1, 40])] = rng.randbytes(rng.choice([0, 1, 1, 3]))
    return bytes(data)


def read(reader: Callable[[Path], Any], path: Path, data: bytes) -> Any:
    """What a reader makes of a file, None if it refuses it in the right way."""
    path.write_bytes(data)
    try:
        return reader(path)
    except InputError as refused:
        message = str(refused)
    assert str(path) in message, message
    assert len(message) < 4000
    return None


@functools.cache
def seeds_of(kind: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((SEEDS / kind).iterdir())]


mutated = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEED = st.integers(0, 2**63)


@mutated
@given(SEED)
def test_clusters(tmp_path: Path, seed: int) -> None:
    text = seeds_of("cluster")[seed % len(seeds_of("cluster"))]
    cluster = read(load_cluster, tmp_path / "cluster.json", changed(text, seed))
    if cluster is not None:
        assert Cluster.from_json(cluster.to_json()) == cluster
        assert (cluster.transfer_matrix(cluster.activation_bytes) >= 0).all()


@mutated
@given(SEED)
def test_plans(tmp_path: Path, seed: int) -> None:
    text = seeds_of("plan")[seed % len(seeds_of("plan"))]
    plan = read(load_plan, tmp_path / "plan.json", changed(text, seed))
    if plan is not None:
        assert Plan.from_json(plan.to_json()) == plan
        assert plan.check() == []


@mutated
@given(SEED)
def test_manifests_of_whoever_has_no_key(tmp_path: Path, seed: int) -> None:
    files = {f"stage-{i}.safetensors": FileRecord(1000 + i, f"{i:064x}") for i in range(3)}
    text = Manifest(7, files).signed(KEY)
    data = changed(text, seed)
    manifest = read(lambda path: read_manifest(path.parent, KEY), tmp_path / MANIFEST, data)
    assert manifest is None or json.loads(data) == json.loads(text)


@settings(mutated, max_examples=max(25, mutated.max_examples // 35))
@given(SEED)
def test_settings(seed: int) -> None:
    """Overrides of any keys compose to settings in their ranges, or are refused."""
    rng = random.Random(seed)
    command = rng.choice(COMMANDS)
    keys = sorted(setting_keys(command.settings_type))
    words = ["null", "true", "-1", "0", "1e400", "nan", "[1,2", "[]", "{a: 1}", "'", "${x}", "geo20", "a b", "", "\\"]
    signs = ["", "", "+", "~"]
    overrides = [f"{rng.choice(signs)}{rng.choice(keys)}={rng.choice(words)}" for _ in range(rng.randint(1, 3))]
    with contextlib.suppress(InputError):
        compose(command.name, overrides)
