;; Pass on every n-th event, followed by its number as text, with the attribute `count`.
;; Parameters: n, one byte. State: the number of events so far, four bytes.
(module
  (memory (export "memory") 2)
  (global $n (mut i32) (i32.const 1))
  (global $count (mut i32) (i32.const 0))
  ;; Results at 0: two of them, of which the first is the event itself.
  (data (i32.const 0) "\02\00\00\00" "\ff\ff\ff\ff\ff\ff\ff\ff" "\0c\00\00\00" "\00\00\00\00" "\81\a5count\ce")

  (func (export "abi") (result i32) (i32.const 1))

  ;; Room for what the broker writes: all memory from 1,024 on.
  (func (export "alloc") (param $size i32) (result i32)
    (local $pages i32)
    (local.set $pages
      (i32.sub (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 2)) (memory.size)))
    (if (i32.gt_s (local.get $pages) (i32.const 0))
      (then (if (i32.lt_s (memory.grow (local.get $pages)) (i32.const 0)) (then (return (i32.const 0))))))
    (i32.const 1024))

  (func (export "open") (param $at i32) (param $size i32) (result i32)
    (if (i32.ne (local.get $size) (i32.const 1)) (then (return (i32.const 1))))
    (global.set $n (i32.load8_u (local.get $at)))
    (i32.eqz (global.get $n)))

  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (local $end i32) (local $left i32) (local $digits i32)
    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    ;; A payload of "fail" fails, for tests.
    (local.set $end (i32.add (local.get $at) (local.get $size)))
    (if (i32.eq (i32.sub (local.get $size) (i32.add (i32.load (local.get $at)) (i32.const 4))) (i32.const 4))
      (then (if (i32.eq (i32.load (i32.sub (local.get $end) (i32.const 4))) (i32.const 0x6c696166))
        (then (unreachable)))))
    (if (i32.rem_u (global.get $count) (global.get $n)) (then (return (i64.const 0))))
    ;; The number as the attribute's value, big-endian as all of MessagePack, and then as digits.
    (i32.store8 (i32.const 28) (i32.shr_u (global.get $count) (i32.const 24)))
    (i32.store8 (i32.const 29) (i32.shr_u (global.get $count) (i32.const 16)))
    (i32.store8 (i32.const 30) (i32.shr_u (global.get $count) (i32.const 8)))
    (i32.store8 (i32.const 31) (global.get $count))
    (local.set $left (global.get $count))
    (loop $more
      (local.set $digits (i32.add (local.get $digits) (i32.const 1)))
      (i32.store8
        (i32.sub (i32.const 64) (local.get $digits))
        (i32.add (i32.const 48) (i32.rem_u (local.get $left) (i32.const 10))))
      (br_if $more (local.tee $left (i32.div_u (local.get $left) (i32.const 10)))))
    (i32.store (i32.const 16) (local.get $digits))
    (memory.copy (i32.const 32) (i32.sub (i32.const 64) (local.get $digits)) (local.get $digits))
    (i64.extend_i32_u (i32.add (i32.const 32) (local.get $digits))))

  (func (export "save") (result i64)
    (i32.store (i32.const 512) (global.get $count))
    (i64.const 0x20000000004))
  (func (export "load") (param $at i32) (param $size i32) (result i32)
    (global.set $count (i32.load (local.get $at)))
    (i32.ne (local.get $size) (i32.const 4)))
)
