"""Keeps the runtimes of TPUs and GPUs from complaining where they are installed without a device.

They bring XLA's compilers, which need none.
"""

import glob
import os
import pathlib

# By the vendor on the PCI bus, what its runtime is told where it has no device there: TPU's that
# this is a machine on its own, for it to ask nobody what pod it is part of; CUDA's not to look for
# the libraries that its programs run with.
ENVIRONMENT = {
    "0x1ae0": {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
               "TPU_PROCESS_BOUNDS": "1,1,1"},
    "0x10de": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
}
DEVICES = "/sys/bus/pci/devices/*/vendor"


def quiet(devices: str = DEVICES) -> None:
  """Sets the ENVIRONMENT of vendors that are not on the bus; what is set already stays.

  JAX loads the runtimes as it starts, so this comes before.

  Args:
    devices: pattern of the files with the vendors on the bus.
  """
  vendors = {pathlib.Path(path).read_text().strip() for path in glob.glob(devices)}
  for vendor, environment in ENVIRONMENT.items():
    if vendor not in vendors:
      for key, value in environment.items():
        os.environ.setdefault(key, value)
