"""Durable objects in non-volatile memory: collections, attributes, ordered maps, transactions."""

from ._nacre import Changed, Error, Exists, NotFound, Pool, Stat, Transaction

__all__ = ["Changed", "Error", "Exists", "NotFound", "Pool", "Stat", "Transaction"]
