"""Where the time of steps goes."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(slots=True)
class StepSeconds:
    """Seconds of some steps, by what they were spent on.

    Attributes:
        steps: How many steps.
        network: Passes of the drafter network.
        trees: Asking the text sources, and sharing the pass out.
        planning: Cutting rows into passes, and finding which keys each row reads.
        target: Target passes, up to the logits.
        choosing: The target's choices along the trees, and stops.
        committing: Storing the walked rows' keys and values.
        learning: What proposers and the drafter learn of the walked paths; closing.
        scheduling: Admitting answers and gathering rows.
    """

    steps: int = 0
    network: float = 0.0
    trees: float = 0.0
    planning: float = 0.0
    target: float = 0.0
    choosing: float = 0.0
    committing: float = 0.0
    learning: float = 0.0
    scheduling: float = 0.0

    @property
    def drafting(self) -> float:
        """Everything that arranging candidate trees takes."""
        return self.network + self.trees

    @property
    def total(self) -> float:
        """The whole of the steps."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Seconds by name, in the order of a step."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "steps"}

    def since(self, before: Self) -> Self:
        """What has been spent since a copy was made."""
        return type(self)(
            *(getattr(self, one.name) - getattr(before, one.name) for one in fields(self))
        )
