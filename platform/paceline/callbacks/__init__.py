"""Code that runs at a run's hooks, apart from the module."""

from paceline.callbacks.callback import Callback
from paceline.callbacks.early_stopping import EarlyStopping
from paceline.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from paceline.callbacks.lambda_callback import LambdaCallback
from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.callbacks.model_summary import ModelSummary
from paceline.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from paceline.callbacks.prediction_writer import BasePredictionWriter
from paceline.callbacks.progress_bar import TQDMProgressBar
from paceline.callbacks.timer import Timer

__all__ = [
    "BasePredictionWriter",
    "Callback",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "TQDMProgressBar",
    "Timer",
]
