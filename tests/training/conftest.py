"""What the tests of trainings share."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As trainings run: another number of threads adds in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
