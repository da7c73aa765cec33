;; Runoff on ground that falls to the right and down, as the flood watch computes it from precipitation and terrain.
;; An event is an array of doubles, the rain on each cell, whose rows follow each other. Of the water on a cell, rain and
;; what runs to it from the left and from above, `loss` seeps away. Of the rest some runs to the right and some down.
;; The result is that rest, inside of a box. It has the attributes of the event. There is no state.
;; Parameters: loss (a double); columns, then left, top, right and bottom of the box, 32 bits each; then the terrain, or
;; nothing. The terrain has a byte for every 4 x 4 cells, row by row: how many of 256 parts run to the right. Without it
;; half of the water does. It is kept from address 16 on: parameters and events begin at 1024.
(module
  (memory (export "memory") 2)
  (global $loss (mut f64) (f64.const 0))
  (global $columns (mut i32) (i32.const 0))
  (global $left (mut i32) (i32.const 0))
  (global $top (mut i32) (i32.const 0))
  (global $right (mut i32) (i32.const 0))
  (global $bottom (mut i32) (i32.const 0))
  (global $terrain (mut i32) (i32.const 0)) ;; its bytes
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
    (global.set $terrain (i32.sub (local.get $size) (i32.const 28)))
    (if (i32.gt_u (global.get $terrain) (i32.const 996)) (then (return (i32.const 1))))
    (memory.copy (i32.const 16) (i32.add (local.get $at) (i32.const 28)) (global.get $terrain))
    (global.set $loss (f64.load (local.get $at)))
    (global.set $columns (i32.load offset=8 (local.get $at)))
    (global.set $left (i32.load offset=12 (local.get $at)))
    (global.set $top (i32.load offset=16 (local.get $at)))
    (global.set $right (i32.load offset=20 (local.get $at)))
    (global.set $bottom (i32.load offset=24 (local.get $at)))
    (i32.or
      (i32.or (i32.ge_u (global.get $left) (global.get $right)) (i32.gt_u (global.get $right) (global.get $columns)))
      (i32.ge_u (global.get $top) (global.get $bottom))))

  ;; Return how many bytes of the terrain are for one row of blocks.
  (func $wide (result i32) (i32.shr_u (i32.add (global.get $columns) (i32.const 3)) (i32.const 2)))

  ;; Let water run, cell by cell, from the place $at up to $end; a row has $width bytes.
  (func $run (param $at i32) (param $end i32) (param $width i32)
    (local $row i32) (local $begin i32) (local $shares i32) (local $below i32)
    (local $rest f64) (local $share f64) (local $right f64)
    (local.set $share (f64.const 0.5))
    (block $done
      (loop $rows
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $begin (local.get $at))
        (local.set $shares
          (i32.add (i32.const 16) (i32.mul (i32.shr_u (local.get $row) (i32.const 2)) (call $wide))))
        (local.set $right (f64.const 0))
        (loop $cells
          (local.set $rest (f64.sub (f64.add (f64.load (local.get $at)) (local.get $right)) (global.get $loss)))
          (local.set $rest (select (local.get $rest) (f64.const 0) (f64.gt (local.get $rest) (f64.const 0))))
          (f64.store (local.get $at) (local.get $rest))
          (if (global.get $terrain) ;; 4 doubles are 32 bytes
            (then (local.set $share (f64.mul (f64.const 0x1p-8) (f64.convert_i32_u (i32.load8_u (i32.add
              (local.get $shares)
              (i32.shr_u (i32.sub (local.get $at) (local.get $begin)) (i32.const 5)))))))))
          (local.set $right (f64.mul (local.get $rest) (local.get $share)))
          (local.set $below (i32.add (local.get $at) (local.get $width)))
          (if (i32.lt_u (local.get $below) (local.get $end))
            (then (f64.store (local.get $below)
              (f64.add (f64.load (local.get $below)) (f64.sub (local.get $rest) (local.get $right))))))
          (br_if $cells (i32.lt_u
            (local.tee $at (i32.add (local.get $at) (i32.const 8)))
            (i32.add (local.get $begin) (local.get $width)))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $rows))))

  (func (export "process") (param $at i32) (param $size i32) (result i64)
    (local $payload i32) (local $row i32) (local $width i32) (local $to i32) (local $pitch i32)
    (local.set $payload (i32.add (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 4))))
    (local.set $size (i32.sub (i32.add (local.get $at) (local.get $size)) (local.get $payload)))
    (local.set $pitch (i32.shl (global.get $columns) (i32.const 3)))
    (if (i32.rem_u (local.get $size) (local.get $pitch)) (then (unreachable)))
    (if (global.get $terrain)
      (then (if (i32.gt_u
          (i32.div_u (local.get $size) (local.get $pitch))
          (i32.shl (i32.div_u (global.get $terrain) (call $wide)) (i32.const 2)))
        (then (unreachable))))) ;; more rows than the terrain has
    (call $run (local.get $payload) (i32.add (local.get $payload) (local.get $size)) (local.get $pitch))
    (local.set $row (global.get $top))
    (local.set $width (i32.shl (i32.sub (global.get $right) (global.get $left)) (i32.const 3)))
    (local.set $to (local.get $payload))
    (block $end
      (loop $rows
        (br_if $end (i32.or
          (i32.ge_u (local.get $row) (global.get $bottom))
          (i32.ge_u (i32.mul (local.get $row) (local.get $pitch)) (local.get $size))))
        (memory.copy
          (local.get $to)
          (i32.add (local.get $payload) (i32.add
            (i32.mul (local.get $row) (local.get $pitch)) (i32.shl (global.get $left) (i32.const 3))))
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
