"""Models by name with everything preconfigured, and where their files come from."""

from peagle.catalog.entry import CatalogEntry, entries
from peagle.catalog.resolution import ResolvedModel, is_cached, resolve, resolve_drafter

__all__ = ["CatalogEntry", "ResolvedModel", "entries", "is_cached", "resolve", "resolve_drafter"]
