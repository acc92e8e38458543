// The machine's limits, measured beside a benchmark on all threads of the pool.
#pragma once

#include <cstddef>
#include <memory>

namespace tersor::cli {

class Limits {
 public:
  Limits();
  /// One streaming read of memory that no cache holds, bytes a second.
  double read_bytes_per_second() const;
  /// Peak rates of float multiply-adds and of the int16 kernels' integer products, operations a second.
  double float_ops_per_second() const;
  double integer_ops_per_second() const;
  /// A parallel region whose tasks, one a thread, do nothing; regions follow one another as within a decode step.
  double region_seconds() const;

 private:
  std::shared_ptr<std::byte> memory_;
};

}  // namespace tersor::cli
