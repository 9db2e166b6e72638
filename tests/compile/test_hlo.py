"""Traffic and memory of programs whose collectives are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.compile import hlo

LOOP = """\
HloModule jit_f, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (p: bf16[8,4]) -> bf16[2,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %all-reduce.9 = bf16[8,4]{1,0} all-reduce(%p), channel_id=9, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = bf16[2,4]{1,0} dynamic-slice(%all-reduce.9), dynamic_slice_sizes={2,4}
}

%all-reduce-scatter.2 (p: bf16[4,4]) -> bf16[1,4] {
  %p = bf16[4,4]{1,0} parameter(0)
  %all-reduce.10 = bf16[4,4]{1,0} all-reduce(%p), channel_id=9, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %part = bf16[1,4]{1,0} dynamic-slice(%all-reduce.10), dynamic_slice_sizes={1,4}
}

%begun (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  ROOT %all-gather.2 = f32[16]{0} all-gather(%p), channel_id=2, replica_groups=[1,4]<=[4], dimensions={0}
}

%piece (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  ROOT %all-gather.3 = f32[16]{0} all-gather(%p), channel_id=2, replica_groups=[1,4]<=[4], dimensions={0}
}

%body (state: (u32[], f32[4,8])) -> (u32[], f32[4,8]) {
  %state = (u32[], f32[4,8]{1,0}) parameter(0)
  %two = u32[] constant(2)
  %i = u32[] get-tuple-element(%state), index=0
  %value = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %next = u32[] add(%i, %two)
  %run = f32[16]{0} fusion(%value), kind=kCustom, calls=%piece
  %another = bf16[1,4]{1,0} fusion(%value), kind=kCustom, calls=%all-reduce-scatter.2
  %kernel = f32[4,8]{1,0} custom-call(%value), custom_call_target="kernel", backend_config={"a": {
 "of":"several lines"
}}, metadata={op_name="kernel"}
  %collective-permute-start = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[], u32[]) collective-permute-start(%value), channel_id=3, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %collective-permute-done = f32[4,8]{1,0} collective-permute-done(%collective-permute-start)
  ROOT %out = (u32[], f32[4,8]{1,0}) tuple(%next, %collective-permute-done)
}

%condition (state: (u32[], f32[4,8])) -> pred[] {
  %state = (u32[], f32[4,8]{1,0}) parameter(0)
  %i = u32[] get-tuple-element(%state), index=0
  %bound = u32[] constant(12)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

ENTRY %main (a: f32[4,8], b: bf16[8,4]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %zero = u32[] constant(0)
  %start = f32[16]{0} fusion(%a), kind=kCustom, calls=%begun
  %scattered = bf16[2,4]{1,0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.1
  %first = (u32[], f32[4,8]{1,0}) tuple(%zero, %a)
  %while = (u32[], f32[4,8]{1,0}) while(%first), condition=%condition, body=%body
  %result = f32[4,8]{1,0} get-tuple-element(%while), index=1
  ROOT %all-reduce.1 = f32[4,8]{1,0} all-reduce(%result), channel_id=1, replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, to_apply=%add
}
"""


def test_kinds_loops_and_pieces():
  found = hlo.traffic(LOOP)
  assert found == {
      "all-gather": hlo.Traffic(1, 64, 48),  # begun outside of the loop, with a piece inside
      "all-reduce": hlo.Traffic(1, 128, 128),  # over 2 of 4 devices
      "collective-permute": hlo.Traffic(6, 6 * 128, 6 * 128),  # 0, 2, ... 10
      "reduce-scatter": hlo.Traffic(1 + 6, 64 + 6 * 32, 48 + 6 * 24),  # of one channel
  }


def test_collectives_of_several_arrays_that_run_beside_other_work():
  """As XLA prints them for GPUs: the type names all that goes in before all that comes out."""
  text = """\
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %x = f32[] parameter(0)
}

ENTRY %main (a: bf16[2,4], b: f32[3]) -> bf16[8,4] {
  %a = bf16[2,4]{1,0} parameter(0)
  %b = f32[3]{0} parameter(1)
  %c = bf16[8,4]{1,0} parameter(2)
  %d = f32[12]{0} parameter(3)
  %g = ((bf16[2,4]{1,0}, f32[3]{0}), (bf16[8,4]{1,0}, f32[12]{0})) all-gather-start(%a, /*index=1*/%b), channel_id=1, replica_groups=mesh['axis_0'=1,'axis_1'=4] {'axis_1'}, dimensions={0}
  %s = ((bf16[8,4]{1,0}, f32[12]{0}), (bf16[2,4]{1,0}, f32[3]{0})) reduce-scatter-start(%c, %d), channel_id=2, replica_groups=mesh['axis_0'=4,'axis_1'=1] {'axis_0'}, to_apply=%add
  %t = ((bf16[8,4]{1,0}), bf16[8,4]{1,0}) all-to-all-start(%c), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}
  %p = (bf16[8,4]{1,0}, bf16[8,4]{1,0}, u32[], u32[]) collective-permute-start(%c), channel_id=4, source_target_pairs={{0,1},{1,0}}
  %r = (f32[12]{0}, f32[12]{0}) all-reduce-start(%d, %d), channel_id=5, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %done = bf16[8,4]{1,0} all-to-all-done(%t)
}
"""
  assert hlo.traffic(text) == {
      "all-gather": hlo.Traffic(1, 64 + 48, 84), "all-reduce": hlo.Traffic(1, 96, 144),
      "all-to-all": hlo.Traffic(1, 64, 48), "collective-permute": hlo.Traffic(1, 64, 64),
      "reduce-scatter": hlo.Traffic(1, 64 + 48, 84)}


def test_memory_of_slices_and_of_what_stays_on_the_chip():
  text = """\
%cut (p: f32[12,100], i: s32[]) -> f32[1,100] {
  %p = f32[12,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %same = f32[12,100]{1,0} bitcast(%p)
  ROOT %slice = f32[1,100]{1,0} dynamic-slice(%same, %i), dynamic_slice_sizes={1,100}
}

%put (p: f32[12,100], x: f32[1,100], i: s32[]) -> f32[12,100] {
  %p = f32[12,100]{1,0} parameter(0)
  %x = f32[1,100]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %update = f32[12,100]{1,0} dynamic-update-slice(%p, %x, %i)
}

ENTRY %main (p: f32[12,100], i: s32[]) -> f32[12,100] {
  %p = f32[12,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %part = f32[1,100]{1,0} fusion(%p, %i), kind=kLoop, calls=%cut
  %near = f32[1,100]{1,0:T(8,128)S(1)} negate(%part)
  %product = (f32[12,12]{1,0}, s8[33554432]{0}) custom-call(%p, %p), custom_call_target="__cublas$lt$matmul"
  ROOT %out = f32[12,100]{1,0} fusion(%p, %near, %i), kind=kLoop, calls=%put
}
"""
  cut = 400 + 400 + 4  # read, written, the index
  negate = 400  # read; its result stays on the chip
  put = 400 + 4  # written, the index
  product = 2 * 4800 + 576  # and nothing of the room that cuBLAS works in
  assert hlo.moved(text) == cut + negate + put + product


def test_a_real_program():
  """A product whose sum over 8 devices is taken in each of 5 turns of a loop."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  rows = jax.NamedSharding(mesh, jax.P("data"))

  def f(x, w):
    def body(w, _):
      return w + x.T @ (x @ w), None
    return jax.lax.scan(body, w, length=5)[0]

  x, w = jnp.ones((16, 4)), jnp.ones((4, 3))
  run = jax.jit(f, in_shardings=(rows, None), out_shardings=jax.NamedSharding(mesh, jax.P()))
  text = run.lower(x, w).compile().as_text()
  assert hlo.traffic(text) == {"all-reduce": hlo.Traffic(5, 5 * 48, 5 * 48 * 2 * 7 / 8)}
  np.testing.assert_allclose(run(x, w), f(x, w), rtol=1e-6)


def test_a_text_that_is_none():
  with pytest.raises(ValueError, match="no entry computation"):
    hlo.traffic("nothing")
