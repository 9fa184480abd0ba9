from peagle.train.synth.scenario import Draws, answer_params
from peagle.train.synth.settings import AnswerSettings


def test_draws_depend_on_the_seed_and_the_number_alone() -> None:
    def some(seed: int, number: int) -> list[float]:
        draws = Draws(seed, number)
        return [draws.share(), draws.below(1000), draws.seed()]

    assert some(1, 2) == some(1, 2)
    assert len({tuple(some(seed, number)) for seed in range(4) for number in range(4)}) == 16


def test_draws_are_spread_evenly() -> None:
    draws = Draws(5, 0)
    counts = [0] * 4
    for _ in range(2000):
        counts[draws.below(4)] += 1
    assert min(counts) > 400


def test_answers_are_greedy_at_temperature_0() -> None:
    params = answer_params(AnswerSettings(max_tokens=50), Draws(0, 0), room=20)
    assert (params.greedy, params.max_tokens, params.seed) == (True, 20, None)


def test_a_share_of_sampled_answers_is_greedy() -> None:
    settings = AnswerSettings(temperature=0.8, top_p=0.9, greedy_share=0.25)
    many = [answer_params(settings, Draws(3, number), room=999) for number in range(400)]
    greedy = [params for params in many if params.greedy]
    assert 70 < len(greedy) < 130
    sampled = [params for params in many if not params.greedy]
    assert {(params.temperature, params.top_p, params.max_tokens) for params in sampled} == {
        (0.8, 0.9, 512)
    }
    assert len({params.seed for params in sampled}) == len(sampled)
