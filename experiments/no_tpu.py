"""Keeps the TPU runtime from complaining where it is installed, for its compiler, without a TPU."""

import glob
import os
import pathlib

# A machine on its own: the runtime then asks nobody what pod it is part of.
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
               "TPU_PROCESS_BOUNDS": "1,1,1"}
VENDOR = "0x1ae0"  # of TPUs on the PCI bus
DEVICES = "/sys/bus/pci/devices/*/vendor"


def quiet(devices: str = DEVICES) -> None:
  """Sets ENVIRONMENT where no TPU is on the bus; what is set already stays.

  JAX loads the runtime as it starts, so this comes before.

  Args:
    devices: pattern of the files with the vendors on the bus.
  """
  vendors = {pathlib.Path(path).read_text().strip() for path in glob.glob(devices)}
  if VENDOR not in vendors:
    for key, value in ENVIRONMENT.items():
      os.environ.setdefault(key, value)
