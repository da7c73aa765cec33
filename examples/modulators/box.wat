;; Cut a box out of an array of doubles whose rows follow each other, as the flood watch does.
;; Parameters, 32 bits each: columns of the array, then left, top, right and bottom of the box, the last two exclusive.
;; The result has the attributes of the event. It has no state.
(module
  (memory (export "memory") 2)
  (global $columns (mut i32) (i32.const 0))
  (global $left (mut i32) (i32.const 0))
  (global $top (mut i32) (i32.const 0))
  (global $right (mut i32) (i32.const 0))
  (global $bottom (mut i32) (i32.const 0))
  (data (i32.const 0) "\01\00\00\00" "\ff\ff\ff\ff")

  (func (export "abi") (result i32) (i32.const 1))

  (func (export "alloc") (param $size i32) (result i32)
    (local $pages i32)
    (local.set $pages
      (i32.sub (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 2)) (memory.size)))
    (if (i32.gt_s (local.get $pages) (i32.const 0))
      (then (if (i32.lt_s (memory.grow (local.get $pages)) (i32.const 0)) (then (return (i32.const 0))))))
    (i32.const 1024))

  (func (export "open") (param $at i32) (param $size i32) (result i32)
    (if (i32.ne (local.get $size) (i32.const 20)) (then (return (i32.const 1))))
    (global.set $columns (i32.load (local.get $at)))
    (global.set $left (i32.load offset=4 (local.get $at)))
    (global.set $top (i32.load offset=8 (local.get $at)))
    (global.set $right (i32.load offset=12 (local.get $at)))
    (global.set $bottom (i32.load offset=16 (local.get $at)))
    (i32.or
      (i32.or (i32.ge_u (global.get $left) (global.get $right)) (i32.gt_u (global.get $right) (global.get $columns)))
      (i32.ge_u (global.get $top) (global.get $bottom))))

  ;; Rows of the box move to the front of the payload, below which the head of the results fits: the box is never
  ;; longer than the array, and a row never moves up.
  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (local $payload i32) (local $row i32) (local $width i32) (local $to i32)
    (local.set $payload (i32.add (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 4))))
    (local.set $size (i32.sub (i32.add (local.get $at) (local.get $size)) (local.get $payload)))
    (if (i32.rem_u (local.get $size) (i32.shl (global.get $columns) (i32.const 3))) (then (unreachable)))
    (local.set $row (global.get $top))
    (local.set $width (i32.shl (i32.sub (global.get $right) (global.get $left)) (i32.const 3)))
    (local.set $to (local.get $payload))
    (block $end
      (loop $rows
        (br_if $end (i32.or
          (i32.ge_u (local.get $row) (global.get $bottom))
          (i32.ge_u (i32.mul (local.get $row) (i32.shl (global.get $columns) (i32.const 3))) (local.get $size))))
        (memory.copy
          (local.get $to)
          (i32.add (local.get $payload) (i32.shl
            (i32.add (i32.mul (local.get $row) (global.get $columns)) (global.get $left)) (i32.const 3)))
          (local.get $width))
        (local.set $to (i32.add (local.get $to) (local.get $width)))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $rows)))
    (local.set $size (i32.sub (local.get $to) (local.get $payload)))
    (if (i32.eqz (local.get $size)) (then (return (i64.const 0))))
    (i32.store (i32.const 8) (local.get $size))
    (local.set $to (i32.sub (local.get $payload) (i32.const 12)))
    (memory.copy (local.get $to) (i32.const 0) (i32.const 12))
    (i64.or
      (i64.shl (i64.extend_i32_u (local.get $to)) (i64.const 32))
      (i64.extend_i32_u (i32.add (local.get $size) (i32.const 12)))))
)
