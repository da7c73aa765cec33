;; Pass on every event. While the consumer cannot be reached, keep results that are younger than the parameter says.
;; Parameters: milliseconds, four bytes. No state.
(module
  (memory (export "memory") 2)
  (global $age (mut i32) (i32.const 0))
  ;; Results at 0: the event itself.
  (data (i32.const 0) "\01\00\00\00" "\ff\ff\ff\ff" "\ff\ff\ff\ff")
  (func (export "abi") (result i32) (i32.const 1))
  (func (export "alloc") (param $size i32) (result i32)
    (select (i32.const 1024) (i32.const 0) (i32.le_u (local.get $size) (i32.const 130048))))
  (func (export "open") (param $at i32) (param $size i32) (result i32)
    (global.set $age (i32.load (local.get $at)))
    (i32.ne (local.get $size) (i32.const 4)))
  (func (export "process") (param $at i32) (param $size i32) (result i64) (i64.const 12))
  (func (export "keep") (param $at i32) (param $size i32) (param $age_ms i32) (result i32)
    (i32.lt_u (local.get $age_ms) (global.get $age)))
)
