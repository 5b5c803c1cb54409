"""What is known to be wrong with a cluster before anything is sent to it."""

import socket
import time

import pytest
from tests.unit.models import Line, indexed, quiet_trainer

from paceline.errors import MisconfigurationError


def test_an_address_where_nobody_listens_is_an_error_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    trainer = quiet_trainer(tmp_path, max_epochs=1, devices=2, address=address)
    begin = time.monotonic()
    with pytest.raises(MisconfigurationError, match=f"address='{address}'"):
        trainer.fit(Line(), indexed(2))
    assert time.monotonic() - begin < 8
