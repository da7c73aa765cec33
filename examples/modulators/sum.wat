;; Replace each event, a double, by the sum of all doubles so far. State: the sum.
(module
  (memory (export "memory") 1)
  (data (i32.const 0) "\01\00\00\00" "\ff\ff\ff\ff" "\08\00\00\00") ;; one result: same attributes, 8 bytes at 12
  (func (export "abi") (result i32) (i32.const 1))
  (func (export "alloc") (param $size i32) (result i32)
    (select (i32.const 1024) (i32.const 0) (i32.le_u (local.get $size) (i32.const 64512))))
  (func (export "open") (param $at i32) (param $size i32) (result i32) (local.get $size)) ;; no parameters
  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (local $payload i32)
    (local.set $payload (i32.add (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 4))))
    (if (i32.ne (i32.sub (i32.add (local.get $at) (local.get $size)) (local.get $payload)) (i32.const 8))
      (then (unreachable))) ;; not a double: a fault, which drops the event
    (f64.store (i32.const 12) (f64.add (f64.load (i32.const 12)) (f64.load (local.get $payload))))
    (i64.const 20))
  (func (export "save") (result i64) (i64.const 0xc00000008))
  (func (export "load") (param $at i32) (param $size i32) (result i32)
    (f64.store (i32.const 12) (f64.load (local.get $at)))
    (i32.ne (local.get $size) (i32.const 8)))
)
