#include "model/arrays.h"

#include <mlx/allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/thread_pool.h"

namespace tersor::model {

mx::array allocate(mx::Shape shape, mx::Dtype dtype) {
  size_t size = mx::size_of(dtype);
  for (const auto dim : shape) size *= static_cast<size_t>(dim);
  mx::array result(mx::allocator::malloc(size), std::move(shape), dtype);
  if (size && !bytes_of(result)) throw std::bad_alloc();  // MLX does not throw here: its buffer is null
  return result;
}

std::byte* bytes_of(mx::array& array) { return reinterpret_cast<std::byte*>(array.data<uint8_t>()); }

mx::array copy_of(std::span<const std::byte> data, mx::Shape shape, mx::Dtype dtype) {
  mx::array result = allocate(std::move(shape), dtype);
  std::byte* to = bytes_of(result);
  constexpr size_t kPiece = size_t{1} << 20;
  const int pieces = static_cast<int>((data.size() + kPiece - 1) / kPiece);
  for_row_pieces(pieces, kPiece, [&](int first, int last) {
    const size_t begin = static_cast<size_t>(first) * kPiece, end = std::min(data.size(), static_cast<size_t>(last) * kPiece);
    std::memcpy(to + begin, data.data() + begin, end - begin);
  });
  return result;
}

std::string_view dtype_name(mx::Dtype dtype) {
  return dtype == mx::float32    ? "f32"
         : dtype == mx::float16  ? "f16"
         : dtype == mx::bfloat16 ? "bf16"
         : dtype == mx::uint32   ? "u32"
         : dtype == mx::uint8    ? "u8"
                                 : "other";
}

void release_pages(std::span<const std::byte> data) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data.data() + data.size()) / page * page;
  // A hint: when the system refuses it, the pages stay resident and nothing else changes.
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void for_row_pieces(int rows, size_t row_bytes, const std::function<void(int, int)>& f) {
  constexpr size_t kPieceBytes = size_t{256} << 10;
  const int step = static_cast<int>(std::clamp<size_t>(kPieceBytes / std::max<size_t>(row_bytes, 1), 1, size_t{1} << 20));
  const size_t pieces = (static_cast<size_t>(rows) + static_cast<size_t>(step) - 1) / static_cast<size_t>(step);
  ThreadPool::instance().run(pieces, [&](size_t piece, size_t) {
    const int first = static_cast<int>(piece) * step;
    f(first, std::min(rows, first + step));
  });
}

}  // namespace tersor::model
