;; Pass on events whose attributes contain certain bytes, for example an entry "colour": "red" of the map, which is
;; "\a6colour\a3red" in MessagePack. Parameters: the bytes. It has no state.
(module
  (memory (export "memory") 2)
  (global $wanted (mut i32) (i32.const 0))
  (data (i32.const 0) "\01\00\00\00" "\ff\ff\ff\ff\ff\ff\ff\ff") ;; one result: the event itself

  (func (export "abi") (result i32) (i32.const 1))

  (func (export "alloc") (param $size i32) (result i32)
    (local $pages i32)
    (local.set $pages
      (i32.sub (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 2)) (memory.size)))
    (if (i32.gt_s (local.get $pages) (i32.const 0))
      (then (if (i32.lt_s (memory.grow (local.get $pages)) (i32.const 0)) (then (return (i32.const 0))))))
    (i32.const 2048))

  ;; The parameters, at most 1,024 bytes, stay at 1,024.
  (func (export "open") (param $at i32) (param $size i32) (result i32)
    (memory.copy (i32.const 1024) (local.get $at) (local.get $size))
    (global.set $wanted (local.get $size))
    (i32.eqz (local.get $size)))

  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (local $last i32) (local $i i32)
    (local.set $last ;; the last place at which they may begin
      (i32.sub (i32.add (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 4))) (global.get $wanted)))
    (local.set $at (i32.add (local.get $at) (i32.const 4)))
    (block $none
      (loop $places
        (br_if $none (i32.gt_s (local.get $at) (local.get $last)))
        (local.set $i (i32.const 0))
        (block $differs
          (loop $bytes
            (br_if $differs (i32.ne
              (i32.load8_u (i32.add (local.get $at) (local.get $i)))
              (i32.load8_u offset=1024 (local.get $i))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $bytes (i32.lt_u (local.get $i) (global.get $wanted))))
          (return (i64.const 12)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $places)))
    (i64.const 0))
)
