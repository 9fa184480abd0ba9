"""The process as a user starts and stops it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

SERVE = "from peagle.cli import main; main()"


def test_a_server_is_configured_by_a_file_and_drains_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: smollm2\nport: 1\nspec: {method: lookup}\nlog-format: json\n")
    told = [sys.executable, "-c", SERVE, "serve", "--config", str(file), "--port", "0"]
    server = subprocess.Popen(told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("smollm2-135m-instruct is ready:")
        assert "speculation lookup" in ready
        url = server.stdout.readline().split()[1].removesuffix("/v1")
        assert httpx.get(f"{url}/health").json() == {"status": "ready"}
        body = {"prompt": "A secret", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(0.1)
        assert httpx.get(f"{url}/health").status_code == 503
        asking.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 150
        _, log = server.communicate(timeout=20)
        assert server.returncode == 0
    finally:
        server.kill()
    lines = [json.loads(line) for line in log.splitlines()]
    asked = [line for line in lines if line.get("route") == "/v1/completions"]
    assert [line["completion_tokens"] for line in asked] == [150]
    assert "secret" not in log
