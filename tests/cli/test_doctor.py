import re

import pytest

from peagle.cli.doctor import _checked
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("backend", "passes"),
    [
        ("native", r"A pass takes up to 256 rows"),
        ("torch", r"a pass of up to\s+\d+\s+rows in\s+blocks\s+of\s+(16|32|64),"),
    ],
)
def test_doctor_reports_the_machine_and_that_rows_are_independent(
    peagle: Run, backend: str, passes: str
) -> None:
    ran = peagle("doctor", "--dtype", "bfloat16", "--backend", backend)
    assert ran.code == 0
    assert "quantization int8" in ran.out
    assert re.search(rf"in bfloat16 on cpu,\s+{backend}", ran.out)
    assert re.search(r"memory .* GB, read at [\d.]+ GB/s", ran.out)
    assert "Row invariance holds" in ran.out
    assert re.search(passes, " ".join(ran.out.split()))
    assert re.search(r"over 16\s+rows\s+[\d.]+\s+times", ran.out)
    for rows in (1, 4, 16, 32):
        assert re.search(rf"^\s+{rows}\s+[\d.]+\s+\d+", ran.out, re.M)
    assert re.search(r"^\s+16\s+[\d.]+\s+\d+\s+(\d+% each|never)", ran.out, re.M)
    assert re.search(r"further answer in a pass costs [\d.]+\s+ms", ran.out)


@pytest.mark.parametrize(
    ("dtype", "quantization", "usual", "checked"),
    [
        ("auto", "auto", "none", [("bfloat16", "none"), ("float32", "none")]),
        ("auto", "none", "int8", [("bfloat16", "none"), ("float32", "none")]),
        (
            "auto", "auto", "int8",
            [("bfloat16", "none"), ("float32", "none"), ("auto", "int8")],
        ),
        ("auto", "int4", "int8", [("auto", "int4")]),
        ("float32", "auto", "int8", [("float32", "auto")]),
    ],
)  # fmt: skip
def test_what_is_usual_is_checked_beside_the_plain_types(
    dtype: str, quantization: str, usual: str, checked: list[tuple[str, str]]
) -> None:
    assert _checked(dtype, quantization, usual) == checked
