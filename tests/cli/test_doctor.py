import re

from tests.cli.conftest import Run


def test_doctor_reports_the_machine_and_that_rows_are_independent(peagle: Run) -> None:
    ran = peagle("doctor", "--dtype", "bfloat16")
    assert ran.code == 0
    assert re.search(r"memory .* GB, read at [\d.]+ GB/s", ran.out)
    assert "Row invariance holds" in ran.out
    assert re.search(r"a pass of up to\s+\d+\s+rows in\s+blocks\s+of\s+(16|32|64),", ran.out)
    for rows in (1, 4, 16, 32):
        assert re.search(rf"^\s+{rows}\s+[\d.]+\s+\d+", ran.out, re.M)
    assert re.search(r"^\s+16\s+[\d.]+\s+\d+\s+(\d+% each|never)", ran.out, re.M)
    assert re.search(r"further answer in a pass costs [\d.]+\s+ms", ran.out)
