"""One thread a test process: the tests run side by side, and small tensors only wait for a second thread."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
# A machine that is busy is no fault of the code.
settings.register_profile("tammes", deadline=None)
settings.load_profile("tammes")
