"""The report as one HTML page that needs nothing else."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from peagle.evaluate.bench.plots import pictures
from peagle.evaluate.bench.results import Results
from peagle.evaluate.bench.tables import tables

_PAGE: Final = Path(__file__).parent / "report.html.jinja"


def render_html(results: Results) -> str:
    """Give the page; everything that came from outside is escaped."""
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return page.from_string(_PAGE.read_text("utf-8")).render(
        results=results,
        headline=headline(results),
        # Drawn by our own code; matplotlib escapes names in it.
        pictures={caption: Markup(svg) for caption, svg in pictures(results).items()},  # noqa: S704
        tables=tables(results),
    )


def headline(results: Results) -> str:
    """The first thing to know: the best ratio with one stream, or with the fewest there were."""
    if not results.concurrencies:
        return "Nothing was measured."
    fewest = results.concurrencies[0]
    rows = [row for row in results.rows if row.concurrency == fewest and row.total_ratio]
    others = [row for row in rows if row.contender != results.baseline]
    if not others:
        return f"Only {results.baseline} was measured."
    best = max(others, key=lambda row: row.total_ratio.value if row.total_ratio else 0.0)
    assert best.total_ratio is not None
    return (
        f"{best.contender} writes {best.total_ratio.value:.2f} times as fast as "
        f"{results.baseline} (95% confidence interval {best.total_ratio.low:.2f} to "
        f"{best.total_ratio.high:.2f}) with {fewest} stream{'s' * (fewest > 1)}."
    )
