"""Kernels of a program for GPUs and of one for TPUs, as XLA prints them."""

from jtx.compile import kernels

GPU = """\
HloModule jit_f, is_scheduled=true

%product (p: bf16[8,8], q: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  %q = bf16[8,8]{1,0} parameter(1)
  ROOT %dot = bf16[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%other (p: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  %inner = bf16[8,8]{1,0} fusion(%p), kind=kLoop, calls=%product
  ROOT %copy = bf16[8,8]{1,0} copy(%inner)
}

%body (state: (u32[], bf16[8,8])) -> (u32[], bf16[8,8]) {
  %state = (u32[], bf16[8,8]{1,0}) parameter(0)
  %i = u32[] get-tuple-element(%state), index=0
  %x = bf16[8,8]{1,0} get-tuple-element(%state), index=1
  %gemm_fusion_dot.1 = bf16[8,8]{1,0} fusion(%x, %x), kind=kCustom, calls=%product, metadata={op_name="jit(f)/a/dot_general"}, backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton_nested_gemm_fusion","block_level_fusion_config":{"num_warps":"2"}}}
  %gemm_fusion_dot.2 = bf16[8,8]{1,0} fusion(%x, %x), kind=kCustom, calls=%product, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %norm = bf16[8,8]{1,0} fusion(%x), kind=kCustom, calls=%other, backend_config={"fusion_backend_config":{"kind":"__triton","block_level_fusion_config":{"num_warps":"8"}}}
  %slice = bf16[8,8]{1,0} fusion(%x), kind=kCustom, calls=%other, backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion","kernel_index":0}}}
  %fwd = (bf16[8,8]{1,0}, f32[8]{0}) custom-call(%x), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(f)/jvp(g)/attention_fwd/pallas_call" stack_frame_id=5}, backend_config={debug = false, ir = "ML\\EFR fusion( custom-call(", name = "attention_fwd"}
  %bwd = bf16[8,8]{1,0} custom-call(%x), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(f)/transpose(jvp(attention_bwd))/pallas_call"}
  ROOT %out = (u32[], bf16[8,8]{1,0}) tuple(%i, %slice)
}

%condition (state: (u32[], bf16[8,8])) -> pred[] {
  %state = (u32[], bf16[8,8]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (x: bf16[8,8]) -> bf16[8,8] {
  %x = bf16[8,8]{1,0} parameter(0)
  %first = (u32[], bf16[8,8]{1,0}) tuple(%x, %x)
  %loop = (u32[], bf16[8,8]{1,0}) while(%first), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %y = bf16[8,8]{1,0} get-tuple-element(%loop), index=1
  %cublas = (bf16[8,8]{1,0}, s8[33554432]{0}) custom-call(%y, %y), custom_call_target="__cublas$lt$matmul", backend_config={}
  %conv = (bf16[8,8]{1,0}, u8[0]{0}) custom-call(%y, %y), custom_call_target="__cudnn$convForward"
  %map = bf16[8,8]{1,0} custom-call(%y), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(f)/mine/mpmd_map"}
  %plain = bf16[8,8]{1,0} fusion(%y), kind=kLoop, calls=%other
  %dnn = bf16[8,8]{1,0} fusion(%y), kind=kCustom, calls=%product, backend_config={"fusion_backend_config":{"kind":"__cudnn$fusion"}}
  %top = bf16[8,8]{1,0} custom-call(%y), custom_call_target="TopK"
  ROOT %z = bf16[8,8]{1,0} copy(%plain)
}
"""

TPU = """\
%product (p: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  ROOT %conv = bf16[8,8]{1,0} convolution(%p, %p), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[8,8]) -> bf16[8,8] {
  %x = bf16[8,8]{1,0} parameter(0)
  %a = bf16[8,8]{1,0} fusion(%x), kind=kOutput, calls=%product
  %room = bf16[8,8]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %copy-start = (bf16[8,8]{1,0}, bf16[8,8]{1,0}, u32[]) copy-start(%a)
  %copy-done = bf16[8,8]{1,0} copy-done(%copy-start)
  ROOT %b = bf16[8,8]{1,0} custom-call(%copy-done), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/splash_mha_fwd/pallas_call"}
}
"""


def test_kernels_of_gpus_count_once_and_run_as_often_as_their_loop():
  assert kernels.kernels(GPU) == {
      "Triton matrix product": (2, 24.0),
      "Triton fusion": (1, 12.0),
      "TopK": (1, 1.0),
      "XLA fusion": (1, 1.0),  # what it is made of is no kernel
      "attention_bwd (Pallas, Triton)": (1, 12.0),
      "attention_fwd (Pallas, Triton)": (1, 12.0),
      "copy": (1, 1.0),
      "cuBLAS lt matmul": (1, 1.0),
      "cuDNN convForward": (1, 1.0),
      "cuDNN fusion": (1, 1.0),
      "dynamic_slice_fusion": (1, 12.0),
      "mine (Pallas, Mosaic GPU)": (1, 1.0),
  }


def test_kernels_of_tpus():
  assert kernels.kernels(TPU) == {"XLA matrix product": (1, 1.0), "copy": (1, 1.0),
                                  "splash_mha_fwd (Pallas, Mosaic)": (1, 1.0)}
