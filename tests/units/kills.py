"""Parts that kill the process that folds a block. This file imports little, since every new process imports it."""

import os
import signal


def killed(block):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(marker, block):
    """The information of the block; but the first process that gets here is killed."""
    from kalprox.information import Information

    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return Information.from_block(block)
    killed(block)
