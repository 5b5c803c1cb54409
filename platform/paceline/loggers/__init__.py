"""Where a run's values go."""

from paceline.loggers.logger import Logger
from paceline.loggers.mlflow import MLflowLogger

__all__ = ["Logger", "MLflowLogger"]
