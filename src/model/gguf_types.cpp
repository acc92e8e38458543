#include "model/gguf_types.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "model/arrays.h"

namespace tersor::model::gguf {
namespace {

constexpr TensorType kTypes[] = {
    {0, "F32", 1, 4},        {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},    {10, "Q2_K", 256, 84},  {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210}, {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50}, {20, "IQ4_NL", 32, 18}, {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},  {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},       {25, "I16", 1, 2},      {26, "I32", 1, 4},
    {27, "I64", 1, 8},       {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56}, {30, "BF16", 1, 2},     {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},  {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},  {41, "Q1_0", 128, 18},
};

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30, kMxfp4 = 39;
constexpr int kGroup = 32;

mx::Dtype dense_dtype(uint32_t id) { return id == kF32 ? mx::float32 : id == kF16 ? mx::float16 : mx::bfloat16; }

// Scale and bias of a converted block, f16; of mxfp4 the scale alone, in its own byte.
struct Block {
  uint16_t scale, bias;
};

uint16_t read_u16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool finite_half(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

// Byte i of a block holds element i in its low half and element i + 16 in its high half; MLX wants neighbours in one byte.
void interleave_nibbles(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < 8; ++i) {
    const uint8_t a = from[2 * i], b = from[2 * i + 1];
    to[i] = static_cast<uint8_t>((a & 0x0f) | (b << 4));
    to[i + 8] = static_cast<uint8_t>((a >> 4) | (b & 0xf0));
  }
}

Block convert_q4_0(const uint8_t* from, uint8_t* to) {
  interleave_nibbles(from + 2, to);
  const uint16_t d = read_u16(from);
  return {d, float_to_half(-8.0f * half_to_float(d))};
}

Block convert_q4_1(const uint8_t* from, uint8_t* to) {
  interleave_nibbles(from + 4, to);
  return {read_u16(from), read_u16(from + 2)};
}

Block convert_q8_0(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < kGroup; ++i) to[i] = from[2 + i] ^ 0x80;  // int8 + 128
  const uint16_t d = read_u16(from);
  return {d, float_to_half(-128.0f * half_to_float(d))};
}

Block convert_mxfp4(const uint8_t* from, uint8_t* to) {
  interleave_nibbles(from + 1, to);
  return {from[0], 0};
}

using Converter = Block (*)(const uint8_t*, uint8_t*);
Converter converter_of(uint32_t id) {
  switch (id) {
    case kQ4_0: return convert_q4_0;
    case kQ4_1: return convert_q4_1;
    case kQ8_0: return convert_q8_0;
    default: return convert_mxfp4;
  }
}
int bits_of(uint32_t id) { return id == kQ8_0 ? 8 : 4; }

// Arrays of a quantised matrix, to be filled.
ops::LinearWeight allocate_quantised(uint32_t id, int rows, int cols) {
  const int bits = bits_of(id), groups = cols / kGroup;
  ops::LinearWeight result{allocate({rows, cols * bits / 32}, mx::uint32), {}, {}, bits, kGroup, {}};
  if (id == kMxfp4) result.coding = Coding::mxfp4;
  result.scales = allocate({rows, groups}, id == kMxfp4 ? mx::uint8 : mx::float16);
  if (id != kMxfp4) result.biases = allocate({rows, groups}, mx::float16);
  return result;
}

ops::LinearWeight make_quantised(uint32_t id, std::span<const std::byte> data, int rows, int cols, const RowMap& source_row,
                                 const std::string& place) {
  const int bits = bits_of(id), groups = cols / kGroup;
  ops::LinearWeight result = allocate_quantised(id, rows, cols);
  auto* codes = reinterpret_cast<uint8_t*>(bytes_of(result.weight));
  auto* scales = bytes_of(*result.scales);
  auto* biases = result.biases ? reinterpret_cast<uint16_t*>(bytes_of(*result.biases)) : nullptr;
  const size_t block_bytes = find_type(id)->bytes, code_bytes = static_cast<size_t>(kGroup) * bits / 8, row_bytes = groups * block_bytes;
  const auto* from = reinterpret_cast<const uint8_t*>(data.data());
  const Converter convert = converter_of(id);
  std::atomic<bool> finite = true;
  for_row_pieces(rows, row_bytes, [&](int first, int last) {
    for (int row = first; row < last; ++row) {
      const uint8_t* source = from + static_cast<size_t>(source_row ? source_row(row) : row) * row_bytes;
      for (int g = 0; g < groups; ++g) {
        const size_t at = static_cast<size_t>(row) * groups + g;
        const Block block = convert(source + g * block_bytes, codes + at * code_bytes);
        if (biases) {
          reinterpret_cast<uint16_t*>(scales)[at] = block.scale, biases[at] = block.bias;
          if (!finite_half(block.scale) || !finite_half(block.bias)) finite = false;
        } else {
          scales[at] = static_cast<std::byte>(block.scale);
          if (block.scale == 255) finite = false;
        }
      }
    }
  });
  if (!finite) throw Error(place + " holds a block scale that is infinite, not a number or too large for 16 bits; the file is damaged");
  return result;
}

mx::array make_dense(uint32_t id, std::span<const std::byte> data, mx::Shape shape, const RowMap& source_row) {
  const mx::Dtype dtype = dense_dtype(id);
  if (!source_row) return copy_of(data, std::move(shape), dtype);
  const int rows = shape[0];
  const size_t row_bytes = data.size() / static_cast<size_t>(rows);
  mx::array result = allocate(std::move(shape), dtype);
  std::byte* to = bytes_of(result);
  for_row_pieces(rows, row_bytes, [&](int first, int last) {
    for (int row = first; row < last; ++row)
      std::memcpy(to + row * row_bytes, data.data() + static_cast<size_t>(source_row(row)) * row_bytes, row_bytes);
  });
  return result;
}

}  // namespace

const TensorType* find_type(uint32_t id) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TensorType& t) { return t.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::string type_name(uint32_t id) {
  const TensorType* type = find_type(id);
  return type ? type->name : "type " + std::to_string(id);
}

bool is_dense(uint32_t id) { return id == kF32 || id == kF16 || id == kBF16; }
bool loadable(uint32_t id) { return is_dense(id) || id == kQ4_0 || id == kQ4_1 || id == kQ8_0 || id == kMxfp4; }

uint64_t loaded_bytes(uint32_t id, uint64_t rows, uint64_t cols) {
  if (is_dense(id)) return rows * cols * find_type(id)->bytes;
  return rows * (cols * static_cast<uint64_t>(bits_of(id)) / 8 + cols / kGroup * (id == kMxfp4 ? 1 : 4));
}

ops::LinearWeight make_matrix(uint32_t id, std::span<const std::byte> data, int rows, int cols, const RowMap& source_row,
                              const std::string& place) {
  if (is_dense(id)) return {make_dense(id, data, {rows, cols}, source_row), {}, {}, 0, 0, {}};
  return make_quantised(id, data, rows, cols, source_row, place);
}

mx::array make_vector(uint32_t id, std::span<const std::byte> data, int size, const RowMap& source) {
  return make_dense(id, data, {size}, source);
}

}  // namespace tersor::model::gguf
