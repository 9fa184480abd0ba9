import re
from pathlib import Path

import pytest

from peagle.catalog import ResolvedModel, resolve
from peagle.errors import CheckpointError, InvalidRequestError, UnsupportedError
from peagle.evaluate.bench.contenders import OWN, PEERS, choose_concurrencies, choose_names
from peagle.evaluate.bench.environments import (
    PACKAGES,
    environment_folder,
    environment_python,
    make_environment,
)
from peagle.evaluate.bench.plan import Sources, own_contenders, peer_contenders, read_sources
from peagle.spec import ParallelDraftingSpec

DRAFTER = Path("p.safetensors")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path))


def made(name: str) -> None:
    folder = environment_folder(name)
    (folder / "bin").mkdir(parents=True)
    for file in ("bin/python", "complete"):
        (folder / file).touch()


def test_names_and_numbers_are_read() -> None:
    def choose(told: str | None) -> list[str]:
        return choose_names(told, ["off", "all"], ["all"], "configurations", "configuration")

    assert (choose(None), choose("none"), choose(" all, off")) == (["all"], [], ["all", "off"])
    assert choose_names("none", ["none", "int8"], [], "quantizations", "one") == ["none"]
    for told, problem in (("al", "'al', which is no configuration"), ("all,all", "'all' twice")):
        with pytest.raises(InvalidRequestError, match=problem):
            choose(told)
    assert choose_concurrencies("1, 8", 8) == [1, 8]
    for told, problem in (
        ("0", "'0'"),
        ("1,1", "'1' twice"),
        ("x", "'x'"),
        ("9", "only 8 prompts"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            choose_concurrencies(told, 8)


def test_every_configuration_is_a_possible_specification() -> None:
    specs = {name: ParallelDraftingSpec.parse(spec) for name, spec in OWN.items() if spec}
    chain = specs["peagle-chain"]
    assert (chain.num_parallel_trees, chain.max_tree_nodes) == (1, 7)
    assert specs["all"].corpus
    assert not specs["peagle-tree"].lookup


def ours(names: list[str], sources: Sources) -> list[str]:
    found = own_contenders(names, ["none"], "m", sources, threads=1, max_concurrent=4)
    return [f"{one.name} {one.service.name}" for one in found]


def test_plain_decoding_is_always_measured_and_processes_are_shared() -> None:
    sources = Sources({"peagle": DRAFTER, "eagle3": Path("e.safetensors")}, Path("c"))
    assert ours(["all", "eagle3"], sources) == [
        "off/bf16 peagle peagle/bf16", "all/bf16 peagle peagle/bf16",
        "eagle3/bf16 peagle eagle3/bf16",
    ]  # fmt: skip
    assert ours([], sources) == []


def test_what_is_missing_is_said() -> None:
    nothing = Sources({}, None)
    for name, option in (("all", "drafter"), ("eagle3", "drafter"), ("lookup+corpus", "corpus")):
        with pytest.raises(InvalidRequestError, match=re.escape(f"--{option}")):
            ours([name], nothing)
    assert ours(["lookup"], nothing) != []
    assert ours(["eagle3+text"], Sources({"eagle3": DRAFTER}, None)) != []


def test_each_method_has_the_models_own_drafter() -> None:
    model = resolve("smollm2")
    usual = read_sources(model, [], None)
    assert usual == Sources(model.drafters, model.corpus)
    assert set(usual.drafters) == {"peagle", "eagle3"}
    with pytest.raises(CheckpointError, match=re.escape(str(DRAFTER))):
        read_sources(model, [DRAFTER], None)


def test_a_given_drafter_stands_in_for_that_of_its_method(tmp_path: Path) -> None:
    model = resolve("smollm2")
    mine = tmp_path / "mine.safetensors"
    mine.symlink_to(model.drafters["eagle3"])
    found = read_sources(model, [mine], Path("c"))
    assert found == Sources({"peagle": model.drafters["peagle"], "eagle3": mine}, Path("c"))
    with pytest.raises(InvalidRequestError, match="are both EAGLE-3 drafters"):
        read_sources(model, [mine, model.drafters["eagle3"]], None)


def peers(name: str, files: Path, sources: Sources) -> None:
    peer_contenders([name], ResolvedModel("m", files), sources, {})


def test_peers_that_cannot_run_are_refused(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.touch()
    sources = Sources({}, None)
    with pytest.raises(UnsupportedError, match="peagle bench --setup-peers --peers openvino"):
        peers("openvino", gguf, sources)
    made("openvino")
    made("vllm")
    with pytest.raises(UnsupportedError, match="openvino reads GGUF files"):
        peers("openvino", tmp_path, sources)
    with pytest.raises(InvalidRequestError, match="vllm-peagle needs a P-EAGLE drafter"):
        peers("vllm-peagle", gguf, sources)
    peers("openvino", gguf, sources)


def test_every_peer_has_an_environment_and_an_adapter() -> None:
    import peagle.evaluate.bench.peers as adapters

    folder = Path(adapters.__file__).parent
    for peer in PEERS.values():
        assert peer.environment in PACKAGES
        assert (folder / f"{peer.module}.py").exists()


def test_an_environment_that_cannot_be_made_names_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from peagle.evaluate.bench import environments

    missing = environments.Packages((str(tmp_path / "no-such-package"),))
    monkeypatch.setattr(environments, "PACKAGES", {"broken": missing})
    with pytest.raises(UnsupportedError, match=r"cannot be made: .*no-such-package"):
        make_environment("broken")
    assert (tmp_path / "peers" / "broken.log").exists()
    with pytest.raises(UnsupportedError, match="has not been made"):
        environment_python("broken")
