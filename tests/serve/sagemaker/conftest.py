"""An unmodified boto3 client of a server's endpoint."""

from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.serve.conftest import Served


def runtime(url: str, access_key: str = "AKIDTEST", secret: str = "s" * 40, **config: Any) -> Any:
    """A client as users make it, but for the URL; it asks once."""
    return boto3.client(
        "sagemaker-runtime",
        region_name="eu-central-1",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=60, **config),
    )


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    return runtime(served.url)
