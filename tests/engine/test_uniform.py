import pytest

from peagle.engine.uniform import uniform


# From `b2sum -l 64` over the three little-endian numbers, the top 53 bits over 2**53.
@pytest.mark.parametrize(
    ("seed", "choice", "position", "expected"),
    [
        (0, 0, 0, 0.156742553465558),
        (0, 0, 1, 0.6269999134633438),
        (0, 1, 0, 0.4633667468151501),
        (1, 0, 0, 0.33776134126730917),
        (2**64 - 1, 127, 131_071, 0.0016571414010654317),
    ],
)
def test_known_numbers(seed: int, choice: int, position: int, expected: float) -> None:
    assert uniform(seed, choice, position) == expected


def test_numbers_fill_the_unit_interval_evenly() -> None:
    draws = sorted(uniform(7, 0, position) for position in range(10_000))
    assert draws[0] >= 0
    assert draws[-1] < 1
    farthest = max(abs(u - (i + 0.5) / 10_000) for i, u in enumerate(draws))
    assert farthest < 0.0195  # Kolmogorov-Smirnov, 0.1 %


def test_seeds_choices_and_positions_do_not_share_numbers() -> None:
    drawn = {uniform(s, c, p) for s in range(20) for c in range(20) for p in range(20)}
    assert len(drawn) == 8000
