"""Data: loaders, how they are shared among workers and combined, and the batches that come of them."""

from paceline.data.combined import CombinedLoader

__all__ = ["CombinedLoader"]
