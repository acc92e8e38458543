// MLX arrays with memory of their own, filled by the caller.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace tersor::model {

namespace mx = mlx::core;

/// An evaluated array whose bytes are not set yet.
mx::array allocate(mx::Shape shape, mx::Dtype dtype);
/// Its memory, to fill before anything reads the array.
std::byte* bytes_of(mx::array& array);
/// An array with a copy of `data`, which must have the size that shape and dtype say.
mx::array copy_of(std::span<const std::byte> data, mx::Shape shape, mx::Dtype dtype);

/// "f32", "f16", "bf16", "u32", "u8"; the dtypes weights have.
std::string_view dtype_name(mx::Dtype dtype);

/// Tells the system that this part of a mapped file is not needed for now, so that it does not count as resident.
void release_pages(std::span<const std::byte> data);

/// Calls f(first, last) for pieces of [0, rows) on all threads; pieces hold about 256 KiB. f must not throw.
void for_row_pieces(int rows, size_t row_bytes, const std::function<void(int first, int last)>& f);

}  // namespace tersor::model
