"""Durable objects in non-volatile memory: collections, attributes, ordered maps, transactions."""

from ._nacre import Error, Exists, NotFound, Pool, Stat, Transaction

__all__ = ["Error", "Exists", "NotFound", "Pool", "Stat", "Transaction"]
