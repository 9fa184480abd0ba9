"""docs/models.md tells of the families that run and of the tests that there are."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_registry_and_the_tests_make_it() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "models_table.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
