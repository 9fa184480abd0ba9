"""What an EAGLE-3 drafter is: the shape of its network and the target it was made for."""

from dataclasses import dataclass
from typing import ClassVar

from peagle.draft.network.config import NetworkConfig
from peagle.spec import NetworkMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(NetworkConfig):
    """The shape of an EAGLE-3 network (arXiv 2503.01840).

    Attributes:
        norm_output: Whether the final norm is applied to what is fed back for the next level
            (EAGLE-3.1); otherwise that is the residual stream behind the last layer as it is.
    """

    method: ClassVar[NetworkMethod] = "eagle3"

    norm_output: bool = False
