"""The contract suite on every backend of our own; see ``contract_target`` in conftest.py."""

from contract.suite import *  # noqa: F403
