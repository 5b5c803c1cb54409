"""How a module runs on one device or on many."""

from paceline.strategies.accelerators import Accelerator
from paceline.strategies.base import Strategy
from paceline.strategies.ddp import DDPStrategy
from paceline.strategies.fsdp import FSDPStrategy
from paceline.strategies.precision import Precision
from paceline.strategies.registry import register_strategy
from paceline.strategies.single_device import SingleDeviceStrategy

__all__ = [
    "Accelerator",
    "DDPStrategy",
    "FSDPStrategy",
    "Precision",
    "SingleDeviceStrategy",
    "Strategy",
    "register_strategy",
]
