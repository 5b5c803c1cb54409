"""One device, one worker."""

from __future__ import annotations

from paceline.strategies.base import Strategy


class SingleDeviceStrategy(Strategy):
    """Trains on one device: there is nobody to agree with."""

    name = "single_device"
