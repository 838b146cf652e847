"""What every wheel must pass, in an environment with nothing but the wheel and its dependencies.

Run from outside the repository: its source folder would shadow the installed native module.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np


def installed() -> str:
    """Return the version after checking that the installed package, and not a checkout, is what runs."""
    import caliber
    from caliber import _native

    package = Path(caliber.__file__ or "").parent
    module = Path(_native.__file__)
    assert module.parent == package, f"{module} does not belong to {package}"
    assert not (package.parent / "csrc").exists(), f"{package} is a checkout"
    assert ".abi3." in module.name, f"{module.name} is bound to one Python"
    files = importlib.resources.files("caliber")
    assert files.joinpath("py.typed").is_file()
    for name in ("program", "pieces", "condition"):
        assert files.joinpath("dsl", f"grammar.{name}.json").is_file(), (
            f"the tables of the grammar ({name}) are missing"
        )
    return importlib.metadata.version("caliber-memory")


def kernels() -> tuple[str, ...]:
    """Return the paths that gave equal answers."""
    from caliber import kernels as k

    generator = np.random.default_rng(1)
    rows = generator.standard_normal((5000, 100), dtype=np.float32)
    estimator = k.BytesEstimator(3.5)
    answers = set()
    for path in k.available_paths():
        with k.forced_path(path):
            matrix = k.VectorMatrix(100)
            ids = matrix.append(rows)
            matrix.retire(ids[::7])
            found, scores = matrix.topk(rows[3], 20)
            digest = k.sha256_batch([b"abc"])[0].tobytes()
            assert digest == hashlib.sha256(b"abc").digest()
            assert k.truncate_to_tokens("hello brave new world", 5, estimator=estimator) == "hello brave..."
            assert k.uuid7() < k.uuid7()
            answers.add((found.tobytes(), scores.tobytes()))
    assert len(answers) == 1, "the paths disagree"
    return k.available_paths()


def memory(folder: Path) -> None:
    """Remember a turn, close, reopen, and find it in a window: the whole house, without any extra."""
    import caliber

    config = caliber.profiles.reference(
        folder / "smoke.db",
        embedding_provider={"provider_type": "hash", "model": "hash", "dimensions": 32},
        **{"vector.dimensions": 32, "search.keyword.similar_words": "none"},  # those need the extra embed
    )
    caliber.create(config)
    agent = caliber.EntityRef(caliber.EntityType.AGENT, uuid.UUID(int=1))
    with caliber.open(config) as opened:
        task = opened.start_trajectory("smoke test", initiator=agent)
        scope = opened.current_scope(task.trajectory_id)
        assert scope is not None
        opened.append_turn(scope.scope_id, role="user", content="The milk is in the fridge")
    with caliber.open(config) as opened:
        window = opened.assemble_context(task.trajectory_id, max_tokens=500)
    assert "The milk is in the fridge" in window.text


if __name__ == "__main__":
    version = installed()
    with tempfile.TemporaryDirectory() as place:
        memory(Path(place))
    subprocess.run([sys.executable, "-m", "caliber", "--version"], check=True, stdout=subprocess.DEVNULL)
    print(f"caliber-memory {version} on Python {sys.version.split()[0]}: kernels {', '.join(kernels())} agree")
