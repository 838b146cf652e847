"""The entities that the contract suite ships with, under the name that tests know them by."""

from caliber.testing.entities import different, hash_of, plain
from caliber.testing.generated import entities_of

__all__ = ["different", "entities_of", "hash_of", "plain"]
