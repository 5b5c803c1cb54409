"""One Ray of this machine for all integration tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """A Ray with two CPUs, ended after the last test."""
    import ray

    from paceline.launch import warm

    assert "RAY_ADDRESS" not in os.environ
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="warning")
    yield ray
    warm.close()
    ray.shutdown()
