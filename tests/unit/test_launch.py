"""What is known to be wrong with a cluster before anything is sent to it."""

import socket
import time

import pytest
from tests.unit.models import Line, indexed, quiet_trainer

from paceline.errors import MisconfigurationError


@pytest.mark.parametrize("accelerator", ["auto", "cpu"])  # "auto" asks the cluster what it has
def test_an_address_where_nobody_listens_is_an_error_at_once(tmp_path, accelerator):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    begin = time.monotonic()
    with pytest.raises(MisconfigurationError, match=f"address='{address}'"):
        quiet_trainer(tmp_path, max_epochs=1, devices=2, address=address, accelerator=accelerator).fit(
            Line(), indexed(2)
        )
    assert time.monotonic() - begin < 8
