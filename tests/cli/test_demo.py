from tests.cli.conftest import Run


def test_the_demo_shows_identical_tokens_and_both_speeds(peagle: Run) -> None:
    ran = peagle("demo", "Repeat five times: the cat sat on the mat.")
    assert ran.code == 0
    assert "tokens are identical" in ran.out
    assert "without speculation" in ran.out
    assert "with speculation (lookup)" in ran.out
    assert "tokens/s" in ran.out
