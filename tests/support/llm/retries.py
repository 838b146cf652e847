"""Retries that wait as long as a test says."""

from __future__ import annotations

import threading
from typing import Any

from caliber.config.providers import RetryConfig
from caliber.llm.retry import Retry


def waits(**changes: Any) -> RetryConfig:
    """Return the knobs of retries without a wait worth speaking of."""
    quick = {"max_retries": 3, "initial_backoff": 1, "max_backoff": 2, "backoff_multiplier": 2.0, "jitter": 0.0}
    return RetryConfig(**{**quick, **changes})


def retry(stopped: Any = None, **changes: Any) -> Retry:
    """Return a retry with such waits."""
    return Retry(waits(**changes), stopped or threading.Event())
