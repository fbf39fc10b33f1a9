"""What the server of processes imports: kernels of the CPU are compiled here once, not again in every process that is
forked from it. One thread, as threads would not be there in a forked process."""

import torch

from stdl_engine import parallel, train  # noqa: F401 - imported to be there

from ..rules.nets import batch, make, small

torch.set_num_threads(1)
if not torch.cuda.is_available():  # autograd's threads for a GPU would not survive either
    for options in ({}, {"memory": "paper"}, {"recompute": "all"}):
        x, y = batch()
        rule = make("stdl", small().to(memory_format=torch.channels_last), x, **options)
        rule.step(x.contiguous(memory_format=torch.channels_last), y, 2)
        rule.predict(x.contiguous(memory_format=torch.channels_last), 2)
