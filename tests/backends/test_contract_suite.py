"""The shipped contract suite on every backend of our own; see ``contract_target`` in conftest.py."""

from caliber.testing.suite import *  # noqa: F403
