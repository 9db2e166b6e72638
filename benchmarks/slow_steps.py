"""Train steps as long as the variable STEP_SECONDS says: a module for a config's `imports`.

The device waits and not the host, which goes on as it would beside a large model: a callback of JAX
would have the host wait, too, so XLA is given a function of its own. The number of the step that is
under way is in the file that STEP_FILE names.
"""

import ctypes
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from jtx.train.program import Program

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


@_Function
def _wait(out, arguments):
  """The number of a step, after STEP_SECONDS."""
  step = ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int32))[0]
  with open(os.environ["STEP_FILE"], "w", encoding="utf-8") as f:
    f.write(f"{step + 1}\n")
  time.sleep(float(os.environ["STEP_SECONDS"]))
  ctypes.cast(out, ctypes.POINTER(ctypes.c_int32))[0] = step


def _capsule(function):
  new = ctypes.pythonapi.PyCapsule_New
  new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
  return new(ctypes.cast(function, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)


jax.ffi.register_ffi_target("jtx_wait", _capsule(_wait), platform="cpu", api_version=0)


@jax.jit
def _waited(step, numbers):
  """The step, later. Products are in it since XLA has the host wait for programs without work."""
  step = jax.ffi.ffi_call("jtx_wait", jax.ShapeDtypeStruct((), np.int32),
                          custom_call_api_version=1)(step)
  return jnp.where(jnp.isnan(numbers @ numbers).any(), -1, step)


class _Slow:
  """A jitted step that begins when the wait is over."""

  def __init__(self, jitted_step):
    self._step, self._numbers = jitted_step, np.full((64, 64), 0.01, np.float32)

  def __call__(self, state, *inputs):
    return self._step(state.replace(step=_waited(state.step, self._numbers)), *inputs)


def _slow(init):
  def slow(self, *args, **kwargs):
    init(self, *args, **kwargs)
    self.jitted_step = _Slow(self.jitted_step)
  return slow


Program.__init__ = _slow(Program.__init__)
