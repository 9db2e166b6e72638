"""Cycles of a program that was written by hand, and the names of its layers."""

import pytest

from jtx.compile import cycles

TEXT = """\
HloModule jit_train_step, is_scheduled=true

FileNames
1 "/home/ann/jtx/nn/layers.py"
2 "/home/ann/jtx/train/step.py"

FunctionNames
1 "Dense"

FileLocations
1 {file_name_id=1 function_name_id=1 line=61 end_line=61 column=2 end_column=9}
2 {file_name_id=2 function_name_id=1 line=7 end_line=8 column=2 end_column=9}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=1}

%inside (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %hidden = f32[8]{0} add(%p, %p), backend_config={"window_config":{"estimated_cycles":"999"}}
}

%body (state: (u32[], f32[8])) -> (u32[], f32[8]) {
  %state = (u32[], f32[8]{0}) parameter(0)
  %one = u32[] constant(1)
  %i = u32[] get-tuple-element(%state), index=0
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %next = u32[] add(%i, %one)
  %dot = f32[8]{0} fusion(%x), kind=kOutput, calls=%inside, metadata={op_name="jit(train_step)/jvp(loss)/Encoder/Encoder.run/encoder/while/body/closed_call/layers/layers.residual/ffn/dot_general" stack_frame_id=2}, backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %out = (u32[], f32[8]{0}) tuple(%next, %dot)
}

%condition (state: (u32[], f32[8])) -> pred[] {
  %state = (u32[], f32[8]{0}) parameter(0)
  %i = u32[] get-tuple-element(%state), index=0
  %bound = u32[] constant(3)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %zero = u32[] constant(0)
  %first = (u32[], f32[8]{0}) tuple(%zero, %x)
  %loop = (u32[], f32[8]{0}) while(%first), condition=%condition, body=%body
  %y = f32[8]{0} get-tuple-element(%loop), index=1
  %copy-start.1 = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%y), backend_config={"window_config":{"estimated_cycles":"40"}}
  %free = f32[8]{0} bitcast(%y), backend_config={"window_config":{"estimated_cycles":"0"}}
  ROOT %z = f32[8]{0} add(%y, %y), metadata={op_name="jit(train_step)/optimizer/add" stack_frame_id=1}, backend_config={"window_config":{"estimated_cycles":"7"}}
}
"""


RATES = cycles.Rates(operations=100.0, bytes=10.0)


def test_instructions_count_as_often_as_they_run_and_fusions_once():
  assert cycles.work(TEXT, RATES) == [
      cycles.Work(cycles=300.0, runs=3.0, operation="dot_general",
                  layer="forward Encoder/encoder/layers/ffn", line="jtx/nn/layers.py:61"),
      cycles.Work(cycles=40.0, runs=1.0, operation="copy-start", layer="update", line=""),
      cycles.Work(cycles=7.0, runs=1.0, operation="add", layer="update optimizer",
                  line="jtx/train/step.py:7")]


NESTED = """\
HloModule jit_step

%product (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}

%inner (p: (u32[], f32[8])) -> (u32[], f32[8]) {
  %p = (u32[], f32[8]{0}) parameter(0)
  ROOT %a = (u32[], f32[8]{0}) fusion(%p), calls=%product, backend_config={"estimated_cycles":"11"}
}

%outer (p: (u32[], f32[8])) -> (u32[], f32[8]) {
  %p = (u32[], f32[8]{0}) parameter(0)
  %b = (u32[], f32[8]{0}) copy(%p), backend_config={"estimated_cycles":"3"}
  ROOT %w = (u32[], f32[8]{0}) while(%b), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

ENTRY %main (x: (u32[], f32[8])) -> (u32[], f32[8]) {
  %x = (u32[], f32[8]{0}) parameter(0)
  %v = (u32[], f32[8]{0}) while(%x), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %r = (u32[], f32[8]{0}) copy(%v), backend_config={"estimated_cycles":"2"}
}
"""
CHOICE = """\
HloModule jit_step

%one (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p, %p), backend_config={"estimated_cycles":"30"}
}

%two (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %b = f32[8]{0} multiply(%p, %p), backend_config={"estimated_cycles":"70"}
}

ENTRY %main (i: s32[], x: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %x = f32[8]{0} parameter(1)
  ROOT %r = f32[8]{0} conditional(%i, %x, %x), branch_computations={%one, %two}
}
"""


@pytest.mark.parametrize("text, expected", [
    (NESTED, 4 * (3 + 5 * 11) + 2),
    (CHOICE, (30 + 70) / 2)])  # a branch each half of the time
def test_sums_by_hand(text, expected):
  assert sum(w.cycles for w in cycles.work(text, RATES)) == expected


@pytest.mark.parametrize("shares, expected", [
    ({("encoder", "layers_1"): (0.25, 0.75)}, 0.25 * 30 + 0.75 * 70),
    ({("encoder", "layers"): (0.25, 0.75)}, 50),  # of other layers
    ({("layers_1", "encoder"): (0.25, 0.75)}, 50),
    ({("encoder", "layers_1"): (0.25, 0.5, 0.25)}, 50)])  # not what these layers choose among
def test_kinds_of_layers_count_by_their_share(shares, expected):
  path = 'metadata={op_name="jit(train_step)/jvp(loss)/Encoder/encoder/while/body/layers_1/cond"}'
  text = CHOICE.replace("{%one, %two}", f"{{%one, %two}}, {path}")
  assert sum(w.cycles for w in cycles.work(text, RATES, shares)) == expected
  assert cycles.summary(text, RATES, 0, shares) == {"cycles": expected}


def test_a_summary_adds_up_and_tells_of_the_others():
  found = cycles.summary(TEXT, RATES, 1)
  assert found["cycles"] == 347.0
  assert found["operation"] == [("dot_general", 300.0, 3.0), ("2 others", 47.0, 0.0)]
  for key in cycles.KEYS:
    assert sum(row[1] for row in found[key]) == 347.0
  text = cycles.tables(found)
  assert "| jtx/nn/layers.py:61 | 300 | 86.5% | 3 |" in text and text.startswith("347 cycles\n")
  assert cycles.summary(TEXT, RATES, 0) == {"cycles": 347.0}


@pytest.mark.parametrize("path, layer", [
    ("jit(train_step)/transpose(jvp(loss))/Vit/encoder/while/body/checkpoint/layers/attention/dot",
     "backward Vit/encoder/layers/attention"),
    ("jit(train_step)/jvp(loss)/Vit/attention/bth,bsh->bts/dot_general", "forward Vit/attention"),
    ("jit(train_step)/jvp(loss)/mul", "forward"), ("jit(train_step)/add", "update"), ("", "update"),
])
def test_the_pass_and_the_modules_of_a_name(path, layer):
  assert cycles.layer_of(path) == layer


def test_a_kernel_takes_the_longer_of_its_products_and_its_traffic():
  kernel = '%k = f32[8]{0} custom-call(%x), backend_config={"cost_estimate":{"flops":"FLOPS",' \
      '"transcendentals":"5","bytes_accessed":"BYTES","remote_bytes_transferred":"0"}}'
  for flops, moved in ((6000, 5), (5, 6000)):
    line = kernel.replace("FLOPS", str(flops)).replace("BYTES", str(moved))
    text = TEXT.replace("  %free =", f"  {line}\n  %free =")
    (found,) = (w for w in cycles.work(text, RATES) if w.operation == "custom-call")
    assert found.runs == 1
    assert found.cycles == pytest.approx(max(flops / 60, moved / (10 * 470 / 819)))
