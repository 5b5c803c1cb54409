"""Code that runs at a run's hooks, apart from the module."""

from paceline.callbacks.callback import Callback
from paceline.callbacks.device_stats_monitor import DeviceStatsMonitor
from paceline.callbacks.early_stopping import EarlyStopping
from paceline.callbacks.finetuning import BackboneFinetuning, BaseFinetuning
from paceline.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from paceline.callbacks.lambda_callback import LambdaCallback
from paceline.callbacks.learning_rate_monitor import LearningRateMonitor
from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.callbacks.model_summary import ModelSummary
from paceline.callbacks.on_exception_checkpoint import OnExceptionCheckpoint
from paceline.callbacks.prediction_writer import BasePredictionWriter
from paceline.callbacks.progress_bar import TQDMProgressBar
from paceline.callbacks.throughput_monitor import ThroughputMonitor
from paceline.callbacks.timer import Timer
from paceline.callbacks.weight_averaging import WeightAveraging

__all__ = [
    "BackboneFinetuning",
    "BaseFinetuning",
    "BasePredictionWriter",
    "Callback",
    "DeviceStatsMonitor",
    "EarlyStopping",
    "GradientAccumulationScheduler",
    "LambdaCallback",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "TQDMProgressBar",
    "ThroughputMonitor",
    "Timer",
    "WeightAveraging",
]
