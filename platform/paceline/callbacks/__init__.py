"""Code that runs at a run's hooks, apart from the module."""

from paceline.callbacks.callback import Callback
from paceline.callbacks.early_stopping import EarlyStopping
from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.callbacks.model_summary import ModelSummary
from paceline.callbacks.progress_bar import TQDMProgressBar

__all__ = ["Callback", "EarlyStopping", "ModelCheckpoint", "ModelSummary", "TQDMProgressBar"]
