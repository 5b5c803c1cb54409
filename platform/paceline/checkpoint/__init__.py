"""What a checkpoint holds, how it is written and loaded, and which one to go on from."""

from paceline.checkpoint.io import CheckpointIO

__all__ = ["CheckpointIO"]
