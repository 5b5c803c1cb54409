"""What a checkpoint holds, how it is written and loaded, and which one to go on from."""
