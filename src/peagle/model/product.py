"""A product with a weight, quantised or not, and what may be added to it."""

from typing import Protocol

import torch


class Product(Protocol):
    """A product with a weight: `Linear`, or `QuantizedLinear`."""

    most_rows: int | None
    shape: tuple[int, int]

    @property
    def weight_bytes(self) -> int:
        """Memory of the weight, which one product reads."""
        ...

    @property
    def layout(self) -> str:
        """How the weight is kept, as a person reads it."""
        ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply `rows` `[rows, in]`, giving `[rows, out]`."""
        ...


class Biased:
    """A product to which the same numbers are added in every row; stands where `Linear` does.

    Args:
        product: The product.
        bias: What is added, `[out]`.
    """

    def __init__(self, product: Product, bias: torch.Tensor) -> None:
        self.product = product
        self._bias = bias
        self.shape = product.shape

    @property
    def most_rows(self) -> int | None:
        """More rows are multiplied in blocks of so many."""
        return self.product.most_rows

    @most_rows.setter
    def most_rows(self, rows: int | None) -> None:
        self.product.most_rows = rows

    @property
    def weight_bytes(self) -> int:
        """Memory of the weight, which one product reads."""
        return self.product.weight_bytes

    @property
    def layout(self) -> str:
        """How the weight is kept, as a person reads it."""
        return self.product.layout

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply `rows` `[rows, in]` and add, giving `[rows, out]`."""
        return self.product(rows) + self._bias


def unbiased(product: Product) -> Product:
    """Give a product without what is added to it."""
    return product.product if isinstance(product, Biased) else product
