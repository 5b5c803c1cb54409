"""Where a run's values go."""

from paceline.loggers.csv_logger import CSVLogger
from paceline.loggers.logger import Logger
from paceline.loggers.mlflow import MLflowLogger
from paceline.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "MLflowLogger", "TensorBoardLogger"]
