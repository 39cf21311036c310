"""One thread a test process: the tests run side by side, and small tensors only wait for a second thread."""

import torch

torch.set_num_threads(1)
