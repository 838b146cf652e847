"""The estimator that a configuration names; apart, since `caliber check` asks for it and assembles nothing."""

from __future__ import annotations

from caliber.config import CaliberConfig
from caliber.kernels import Estimator, open_estimator


def estimator_of(config: CaliberConfig) -> Estimator:
    """Return the estimator that a configuration names.

    Raises: ExtraNotInstalled when it needs what is not here.
    """
    tokens = config.tokens
    return open_estimator(tokens.estimator, bytes_per_token=tokens.bytes_per_token, vocabulary=tokens.vocabulary)
