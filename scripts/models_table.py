"""Run the checks of every family of models and write the table of docs/models.md.

    python scripts/models_table.py [--check]

Families and the checks they claim are the registry's, by which models are loaded; a claim holds
where there is a test of that family, and all tests pass. `--check` runs no test: it says whether
there is one for every claim and none beside, and whether docs/models.md has this table.
"""

import argparse
import sys
from pathlib import Path

import pytest

from peagle.model.families import CHECKS, FAMILIES, Check
from peagle.model.gguf_weights import readable_kinds
from peagle.model.supported import SupportedFamily, supported_families

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "models.md"
BEGIN = "<!-- Written by scripts/models_table.py from here -->"
END = "<!-- to here -->"
TREES = "tests/engine/test_families.py::test_trees_give_the_tokens_of_plain_decoding"
CHECKED_BY: dict[Check, str] = {
    "logits": "tests/model/families/test_families.py::test_logits_equal_transformers",
    "tokens": TREES,
    "quantised": TREES,
    "gguf": "tests/model/test_gguf_families.py"
    "::test_transformers_computes_the_same_from_what_was_read",
    "training": "tests/train/test_families.py::test_acceptance_rises_and_what_was_trained_drafts",
    "released": "tests/engine/test_lossless.py"
    "::test_every_kind_of_drafts_gives_the_tokens_of_plain_decoding",
}
# The model of tests that name none: SmolLM2, which is a Llama.
RELEASED = "llama"


class Cases:
    """A plugin of pytest that notes which checks of which families are collected."""

    def __init__(self) -> None:
        self.found: set[tuple[str, Check]] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what every test is for."""
        families = families_by_parameter()
        for item in items:
            test = item.nodeid.partition("[")[0]
            params = item.callspec.params  # type: ignore[attr-defined]
            family = families[params["name"]] if "name" in params else RELEASED
            for check, checked_by in CHECKED_BY.items():
                quantised = params.get("weights", "float32") != "float32"
                if test == checked_by and (test != TREES or quantised == (check == "quantised")):
                    self.found.add((family, check))


def families_by_parameter() -> dict[str, str]:
    """Give families by what parameters of tests call them."""
    from tests.model.families.test_families import EVERY

    told = {name: config.family for name, config in EVERY.items()}
    return told | {"llama": "llama", "qwen3moe": "qwen3_moe", "phi4": "phi3"}


def table(families: list[SupportedFamily]) -> str:
    """Write what the registry says, in Markdown."""
    lines = [
        "| family | architecture | weights | runs in | quantised to | tested |",
        "|---|---|---|---|---|---|",
    ]
    for family in families:
        path = "native step, torch" if family.native else f"torch: no {family.not_native} yet"
        cells = (
            family.title,
            ", ".join(f"`{name}`" for name in family.architectures),
            ", ".join(family.sources),
            path,
            ", ".join(family.quantisations),
            ", ".join(family.checks),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "What *tested* means, each with where:", ""]
    for check, meaning in CHECKS.items():
        file, _, _ = CHECKED_BY[check].partition("::")
        lines.append(f"- **{check}**: {meaning} (`{file}`).")
    kinds = ", ".join(kind.name for kind in readable_kinds())
    lines += ["", f"Kinds of weights that are read from GGUF files: {kinds}."]
    return "\n".join(lines)


def page_with(written: str) -> str:
    """Put the table into its place on the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check_only = parser.parse_args().check
    sys.path.insert(0, str(REPOSITORY))
    cases = Cases()
    options = ["--collect-only", "-qq"] if check_only else ["-q"]
    tests = dict.fromkeys(CHECKED_BY.values())
    ended = pytest.main([f"--rootdir={REPOSITORY}", *options, *tests], plugins=[cases])
    if ended != pytest.ExitCode.OK:
        sys.exit("Not all checks pass: the table stays as it was.")
    claimed = {(family.name, check) for family in FAMILIES for check in family.checks}
    for family, check in sorted(claimed ^ cases.found):
        told = "claims" if (family, check) in claimed else "does not name"
        print(f"{family} {told} the check {check!r}, against the tests.", file=sys.stderr)
    if claimed != cases.found:
        sys.exit("Correct `checks` of the families in src/peagle/model/families, or the tests.")
    written = page_with(table(supported_families()))
    if check_only:
        if written != PAGE.read_text("utf-8"):
            sys.exit(f"{PAGE.name} is not up to date: run python scripts/models_table.py")
        return
    PAGE.write_text(written, "utf-8")


if __name__ == "__main__":
    main()
