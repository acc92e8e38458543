// How a linear layer's results are cut into tasks, and what is done with the sums of one.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/linear_run.h"

namespace tersor::ops {

inline size_t round16(size_t n) { return (n + 15) & ~size_t{15}; }
inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

template <class T>
T* at(T* base, size_t index, Dtype type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return base ? static_cast<Byte*>(base) + index * size_of(type) : nullptr;
}

// A block of results: x rows [row, row + rows) times weight rows [first, first + count) of one job (or pair).
struct Block {
  size_t job, row, rows, first, count;
};

// How the work is cut: `width` weight rows by `height` x rows a task; a gated pair is one column of tasks.
struct Grid {
  const LinearRun& run;
  size_t width, height;

  size_t columns(size_t job) const { return ceil_div(run.jobs[job].matrix.out, width); }
  size_t jobs() const { return run.kind == LinearKind::gated ? 1 : run.jobs.size(); }
  size_t all_columns() const {
    size_t sum = 0;
    for (size_t j = 0; j < jobs(); ++j) sum += columns(j);
    return sum;
  }
  size_t tasks() const { return all_columns() * ceil_div(run.rows, height); }
  // Tasks run through all columns of one block of x rows before the next.
  Block block(size_t task) const {
    const size_t per_row = all_columns(), row = task / per_row * height;
    size_t column = task % per_row, job = 0;
    while (column >= columns(job)) column -= columns(job++);
    const size_t first = column * width;
    return {job, row, std::min(height, run.rows - row), first, std::min(width, run.jobs[job].matrix.out - first)};
  }
};

/// Adds biases and turns the sums of one block (of two for a gated pair, `second`) into the output's type.
void finish_block(const LinearRun& run, const Block& b, float* sums, float* second, size_t lds);

/// Runs a layer whose rows of x went through their norm.
void run_packed(const LinearRun& run);

}  // namespace tersor::ops
