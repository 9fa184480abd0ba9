"""How a server is run; the same names on the command line and in a YAML file."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

_ACCESS_KEY: Final = r"^[A-Za-z0-9_-]{3,128}:\S{16,}$"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class ServeSettings(BaseModel):
    """How a server is run.

    Attributes:
        host: Address to listen at.
        port: Port to listen at; 0 takes a free one.
        api_keys: Keys of which a request must carry one.
        access_keys: AWS access keys, as `ID:SECRET`, with one of which a request must be signed
            instead; without keys of either kind everybody is let in.
        insecure: Listen beyond this machine without a key.
        served_model_names: Names of the model beside its own.
        max_concurrent: Most answers that are written at once.
        max_queue: Most requests that wait; further ones are refused with 429.
        request_timeout: Longest seconds of a request, in the queue and after.
        drain_timeout: Seconds that open requests have to end in when the server is stopped.
        max_body_bytes: Largest body of a request.
        log_prompts: Write prompts and answers to the log.
        log_format: `json` or `text`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_keys: tuple[Annotated[str, Field(pattern=r"^\S+$")], ...] = ()
    access_keys: tuple[Annotated[str, Field(pattern=_ACCESS_KEY)], ...] = ()
    insecure: bool = False
    served_model_names: tuple[str, ...] = ()
    max_concurrent: int = Field(default=32, ge=1)
    max_queue: int = Field(default=256, ge=0)
    request_timeout: float = Field(default=600.0, gt=0)
    drain_timeout: float = Field(default=30.0, ge=0)
    max_body_bytes: int = Field(default=4 << 20, ge=1024)
    log_prompts: bool = False
    log_format: str = Field(default="text", pattern="^(json|text)$")

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in _LOOPBACK

    @property
    def secrets(self) -> dict[str, str]:
        """The secret keys by access key."""
        pairs = (one.partition(":") for one in self.access_keys)
        return {access_key: secret for access_key, _, secret in pairs}
