"""What `peagle serve` is told, by options, by a file and by the environment."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.cli import main
from peagle.cli.serve import ServeOptions
from peagle.serve import server
from peagle.serve.settings import ServeSettings

SECRET = "s" * 40


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ServeSettings, list[str]]]:
    """Runs the command with a file, up to where it would listen; gives what it would do."""

    def run(file: str = "", *options: str) -> tuple[ServeSettings, list[str]]:
        config = tmp_path / "serve.yaml"
        config.write_text(file)
        seen: list[tuple[ServeSettings, list[str]]] = []

        def listen(_load: Any, settings: ServeSettings, names: list[str], _ready: Any) -> None:
            seen.append((settings, names))

        monkeypatch.setattr(server, "run", listen)
        argv = ["peagle", "serve", "--config", str(config), *options]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as left:
            main()
        if left.value.code != 0:
            raise left.value
        return seen[0]

    return run


def test_defaults_are_those_of_the_settings(told: Any) -> None:
    settings, names = told()
    assert settings == ServeSettings()
    assert names == ["smollm2-135m-instruct"] * 2


def test_a_file_is_read_and_the_command_line_wins(told: Any) -> None:
    file = """
    model: smollm2
    port: 9000
    api-key: one
    access_key: ["AKIDTEST:%s"]
    served-model-name: [small, smaller]
    max_queue: 3
    request_timeout: 5
    insecure: true
    spec: {method: lookup}
    corpus: some.safetensors
    threads: null
    log_format: json
    """
    settings, names = told(file % SECRET, "--max-queue", "7", "--served-model-name", "tiny")
    assert settings == ServeSettings(
        port=9000,
        api_keys=("one",),
        access_keys=(f"AKIDTEST:{SECRET}",),
        served_model_names=("tiny",),
        max_queue=7,
        request_timeout=5.0,
        insecure=True,
        log_format="json",
    )
    assert settings.secrets == {"AKIDTEST": SECRET}
    assert names == ["smollm2-135m-instruct", "smollm2", "tiny"]


def test_keys_come_from_the_environment_too(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_API_KEY", "first second")
    monkeypatch.setenv("PEAGLE_ACCESS_KEY", f"AKIDTEST:{SECRET}")
    settings, _ = told("api_key: of-the-file")
    assert settings.api_keys == ("first", "second")
    assert settings.secrets == {"AKIDTEST": SECRET}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("port: true", "has port: True. Input should be a valid integer"),
        ('port: "8080"', "has port: '8080'. Input should be a valid integer"),
        ("insecure: 1", "has insecure: 1. Input should be a valid boolean"),
        ("host: 5", "has host: 5. Input should be a valid string"),
        (
            "api_key: [secret, 5]",
            "has api_key: the value that was given. Input should be",
        ),
        ("request_timeout: soon", "has request_timeout: 'soon'. Input should be a valid number"),
        ("threads: 1.5", "has threads: 1.5. Input should be a valid integer"),
        ("corpus: [1]", "has corpus: [1]. Input should be an instance of Path"),
        ("dtype: null", "has dtype: None. Input should be a valid string"),
        ("colour: red", "has an unknown key 'colour'. Known keys: model, "),
        ("config: other.yaml", "has an unknown key 'config'. Known keys: model, "),
        ("max_concurrent: 0", "--max-concurrent cannot be 0. Input should be greater than"),
        ("port: 70000", "--port cannot be 70000. Input should be less than or equal to 65535"),
        (
            "access_key: AKIDTEST:short",
            "--access-key cannot be the value that was given.",
        ),
        ("log_format: xml", "--log-format cannot be 'xml'. String should match"),
        ("- 1", "is no mapping"),
        ("{", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    told: Any, capsys: pytest.CaptureFixture[str], file: str, message: str
) -> None:
    with pytest.raises(SystemExit) as left:
        told(file)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "short" not in error


def test_every_setting_is_an_option() -> None:
    options = ServeOptions()
    assert options.settings() == ServeSettings()
