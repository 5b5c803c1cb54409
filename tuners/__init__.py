"""Finding good values with Ray Tune."""

from paceline.tuners.tuner import Tuner

__all__ = ["Tuner"]
