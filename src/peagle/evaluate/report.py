"""Acceptance of several ways of drafting side by side: as tables, as Markdown, as an object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.engine.statistics import SpeculationStatistics, pooled
from peagle.evaluate.acceptance import (
    VARIED_ABOVE,
    Answered,
    by_category,
    conditional,
    distinct_bigrams,
    mean_acceptance_length,
)
from peagle.evaluate.comparison import Measured
from peagle.evaluate.configurations import Configuration
from peagle.evaluate.recorded import Recorded

# Depths that tables have room for.
_DEPTHS_SHOWN = 8
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Acceptance over some answers.

    Attributes:
        answers: How many they are.
        mean: Acceptance length, mean over categories; None without a decode pass.
        categories: Acceptance length pooled within each category.
        cumulative: Share of target passes that accepted the draft token at depth 1, 2, …, pooled
            over all answers.
        conditional: The same of those passes that accepted the one before.
        statistics: The counts, pooled over all answers.
    """

    answers: int
    mean: float | None
    categories: dict[str, float | None]
    cumulative: list[float]
    conditional: list[float]
    statistics: SpeculationStatistics

    @classmethod
    def of(cls, answers: Sequence[Answered]) -> "Figures":
        """Count answers together."""
        counted = pooled(answer.statistics for answer in answers)
        cumulative = counted.acceptance_by_depth
        return cls(
            answers=len(answers),
            mean=mean_acceptance_length(answers) if counted.target_passes else None,
            categories={
                category: part.acceptance_length for category, part in by_category(answers).items()
            },
            cumulative=cumulative,
            conditional=conditional(cumulative),
            statistics=counted,
        )

    def as_object(self) -> dict[str, Any]:
        """Give the figures as `eval-drafter.json` has them."""
        return {
            "answers": self.answers,
            "acceptance_length": {
                "mean": _rounded(self.mean),
                "pooled": _rounded(self.statistics.acceptance_length),
                "categories": {name: _rounded(one) for name, one in self.categories.items()},
            },
            "acceptance_by_depth": {
                "cumulative": [_rounded(one) for one in self.cumulative],
                "conditional": [_rounded(one) for one in self.conditional],
            },
            "target_passes": self.statistics.target_passes,
            "draft_passes": self.statistics.draft_passes,
            "drafted_tokens": self.statistics.drafted_tokens,
            "accepted_tokens": self.statistics.accepted_tokens,
            "emitted_tokens": self.statistics.emitted_tokens,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration's figures.

    Attributes:
        configuration: How its drafts were made.
        everything: Over all answers.
        varied: Over those that repeat themselves little.
    """

    configuration: Configuration
    everything: Figures
    varied: Figures


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table whose first column is text and whose others are figures.

    Attributes:
        title: What it shows.
        headings: One a column.
        rows: Likewise.
    """

    title: str
    headings: list[str]
    rows: list[list[str]]

    def as_markdown(self) -> str:
        """Give the table with its title as a heading."""
        lines = [
            f"## {self.title}",
            "",
            _markdown_row(self.headings),
            _markdown_row(["---", *["---:"] * (len(self.headings) - 1)]),
            *(_markdown_row(row) for row in self.rows),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found.

    Attributes:
        setting: What was measured with: model, dtype, prompts, temperature, seeds, ….
        recorded: The answers.
        rows: The configurations.
    """

    setting: Mapping[str, Any]
    recorded: Sequence[Recorded]
    rows: Sequence[Row]

    @classmethod
    def of(
        cls, setting: Mapping[str, Any], recorded: Sequence[Recorded], measured: Sequence[Measured]
    ) -> "Report":
        """Sum up what was measured."""
        rows = [
            Row(
                one.configuration,
                Figures.of(one.answers),
                Figures.of([answer for answer in one.answers if answer.varied]),
            )
            for one in measured
        ]
        return cls(setting, recorded, rows)

    @property
    def repetitive(self) -> int:
        """Answers that the second figures leave out."""
        return sum(distinct_bigrams(one.answer) <= VARIED_ABOVE for one in self.recorded)

    def summary(self) -> str:
        """Say in one sentence what the figures are of."""
        tokens = sum(len(one.answer) for one in self.recorded)
        return (
            f"{len(self.recorded)} answers with {tokens} tokens. Repetitive ones (share of "
            f"distinct bigrams {VARIED_ABOVE} or less), which the second table leaves out: "
            f"{self.repetitive}."
        )

    def tables(self) -> list[TextTable]:
        """Give acceptance length and acceptance by depth."""
        return [
            self._lengths("Acceptance length (tokens per target pass)", varied=False),
            self._lengths("Acceptance length without repetitive answers", varied=True),
            self._depths("Share of passes that accept the draft token at each depth (cumulative)"),
            self._depths("Share of those that accepted the one before (conditional)", given=True),
        ]

    def as_markdown(self) -> str:
        """Give settings, tables and the answers' shares of distinct bigrams."""
        setting = "\n".join(f"- {name}: {_plainly(value)}" for name, value in self.setting.items())
        answers = TextTable(
            "Answers",
            ["answer", "category", "tokens", "distinct bigrams"],
            [
                [one.id, one.category, f"{len(one.answer)}", f"{distinct_bigrams(one.answer):.2f}"]
                for one in self.recorded
            ],
        )
        tables = "\n".join(table.as_markdown() for table in [*self.tables(), answers])
        return f"# Acceptance of drafts\n\n{setting}\n\n{self.summary()}\n\n{tables}"

    def as_object(self) -> dict[str, Any]:
        """Give everything as `eval-drafter.json` has it."""
        return {
            **self.setting,
            "answers": [
                {
                    "id": one.id,
                    "category": one.category,
                    "seed": one.seed,
                    "tokens": len(one.answer),
                    "distinct_bigrams": _rounded(distinct_bigrams(one.answer)),
                }
                for one in self.recorded
            ],
            "repetitive": {"answers": self.repetitive, "distinct_bigrams_up_to": VARIED_ABOVE},
            "configurations": [
                {
                    "name": row.configuration.name,
                    "drafter": row.configuration.drafter,
                    "sources": list(row.configuration.mix),
                    "chain": row.configuration.chain,
                    "parallel_drafting_spec": row.configuration.spec.model_dump(),
                    "all": row.everything.as_object(),
                    "without_repetitive": row.varied.as_object(),
                }
                for row in self.rows
            ],
        }

    def _lengths(self, title: str, *, varied: bool) -> TextTable:
        categories = list(dict.fromkeys(one.category for one in self.recorded))
        rows = []
        for row in self.rows:
            figures = row.varied if varied else row.everything
            whole = [figures.mean, figures.statistics.acceptance_length]
            lengths = [*whole, *(figures.categories.get(name) for name in categories)]
            rows.append([row.configuration.name, *map(_shown, lengths)])
        return TextTable(title, ["drafts", "mean", "pooled", *categories], rows)

    def _depths(self, title: str, *, given: bool = False) -> TextTable:
        deepest = max((len(row.everything.cumulative) for row in self.rows), default=0)
        depths = range(1, min(deepest, _DEPTHS_SHOWN) + 1)
        rows = []
        for row in self.rows:
            figures = row.everything
            shares = figures.conditional if given else figures.cumulative
            shown = [shares[d - 1] if d <= len(shares) else None for d in depths]
            rows.append([row.configuration.name, *map(_shown, shown)])
        return TextTable(title, ["drafts", *map(str, depths)], rows)


def _shown(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.2f}"


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, _DIGITS)


def _plainly(value: Any) -> str:
    if isinstance(value, dict):
        parts = (f"{name} ({', '.join(map(str, one.values()))})" for name, one in value.items())
        return ", ".join(parts) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


def _markdown_row(cells: Sequence[str]) -> str:
    # A vertical bar would end the cell.
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
