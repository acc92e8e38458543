#include "model/gguf.h"

#include <bit>
#include <cstring>

#include "base/sniff.h"
#include "model/gguf_reader.h"

namespace tersor::model::gguf {
namespace {

constexpr uint64_t kMaxAlignment = 1 << 20;

template <class T>
T decode(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// An integer of any width; empty for other types and for u64 beyond int64.
std::optional<int64_t> decode_integer(ValueType type, const std::byte* from) {
  switch (type) {
    case ValueType::u8: return decode<uint8_t>(from);
    case ValueType::i8: return decode<int8_t>(from);
    case ValueType::u16: return decode<uint16_t>(from);
    case ValueType::i16: return decode<int16_t>(from);
    case ValueType::u32: return decode<uint32_t>(from);
    case ValueType::i32: return decode<int32_t>(from);
    case ValueType::i64: return decode<int64_t>(from);
    case ValueType::u64: {
      const auto value = decode<uint64_t>(from);
      if (value <= INT64_MAX) return static_cast<int64_t>(value);
      return {};
    }
    default: return {};
  }
}

const char* name_of_type(ValueType type) {
  static const char* const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<size_t>(type)];
}

}  // namespace

std::string type_text(const Value& value) {
  if (value.type == ValueType::array) return std::string("array of ") + name_of_type(value.element);
  return name_of_type(value.type);
}

File::File(const std::filesystem::path& path) : file_(path) {
  HeaderReader reader(file_);
  reader.preamble();
  version_ = reader.version();
  metadata_ = reader.metadata();
  tensors_ = reader.tensor_list();
  if (const auto given = integer("general.alignment")) {
    if (*given < 8 || *given > static_cast<int64_t>(kMaxAlignment) || !std::has_single_bit(static_cast<uint64_t>(*given)))
      fail("general.alignment is " + std::to_string(*given) + "; it must be a power of two from 8 to " + std::to_string(kMaxAlignment));
    alignment_ = static_cast<uint64_t>(*given);
  }
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!by_name_.emplace(tensors_[i].name, i).second)
      fail("tensor \"" + printable(tensors_[i].name) + "\" occurs twice; the file is damaged");
  reader.place_tensors(tensors_, alignment_);
}

void File::fail(const std::string& text) const { throw Error(path().string() + ": " + text); }

void File::fail_type(std::string_view key, const char* wanted, const Value& value) const {
  fail("metadata key \"" + printable(key) + "\" is of type " + type_text(value) + "; " + wanted + " is needed");
}

const Tensor* File::tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const Value* File::value(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const Value& File::scalar(const Value& value, std::string_view key, Value& storage) const {
  if (value.type != ValueType::array) return value;
  const uint64_t size = scalar_size(value.element);
  if (size == 0 || value.count == 0) fail_type(key, "a single value", value);
  for (uint64_t i = 1; i < value.count; ++i)
    if (std::memcmp(value.bytes.data(), value.bytes.data() + i * size, size) != 0)
      fail("metadata key \"" + printable(key) + "\" differs from layer to layer, which is not supported");
  storage = {.type = value.element, .bytes = value.bytes.first(size)};
  return storage;
}

std::optional<int64_t> File::integer(std::string_view key) const {
  const Value* found = value(key);
  if (!found) return {};
  Value storage;
  const Value& one = scalar(*found, key, storage);
  const auto result = one.type == ValueType::string ? std::nullopt : decode_integer(one.type, one.bytes.data());
  if (!result) fail_type(key, "an integer below 2^63", *found);
  return result;
}

std::optional<double> File::number(std::string_view key) const {
  const Value* found = value(key);
  if (!found) return {};
  Value storage;
  const Value& one = scalar(*found, key, storage);
  if (one.type == ValueType::f32) return decode<float>(one.bytes.data());
  if (one.type == ValueType::f64) return decode<double>(one.bytes.data());
  const auto result = one.type == ValueType::string ? std::nullopt : decode_integer(one.type, one.bytes.data());
  if (!result) fail_type(key, "a number", *found);
  return static_cast<double>(*result);
}

std::optional<bool> File::boolean(std::string_view key) const {
  const Value* found = value(key);
  if (!found) return {};
  if (found->type != ValueType::boolean) fail_type(key, "a boolean", *found);
  return found->bytes[0] != std::byte{0};
}

std::optional<std::string_view> File::string(std::string_view key) const {
  const Value* found = value(key);
  if (!found) return {};
  if (found->type != ValueType::string) fail_type(key, "a string", *found);
  return std::string_view(reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size());
}

bool File::strings(std::string_view key, const std::function<void(uint64_t, std::string_view)>& f) const {
  const Value* found = value(key);
  if (!found) return false;
  if (found->type != ValueType::array || found->element != ValueType::string) fail_type(key, "an array of strings", *found);
  const char* at = reinterpret_cast<const char*>(found->bytes.data());
  for (uint64_t i = 0; i < found->count; ++i) {
    const auto length = decode<uint64_t>(reinterpret_cast<const std::byte*>(at));
    f(i, {at + 8, length});
    at += 8 + length;
  }
  return true;
}

bool File::integers(std::string_view key, const std::function<void(uint64_t, int64_t)>& f) const {
  const Value* found = value(key);
  if (!found) return false;
  const uint64_t size = scalar_size(found->element);
  if (found->type != ValueType::array || size == 0) fail_type(key, "an array of integers", *found);
  for (uint64_t i = 0; i < found->count; ++i) {
    const auto element = decode_integer(found->element, found->bytes.data() + i * size);
    if (!element) fail_type(key, "an array of integers", *found);
    f(i, *element);
  }
  return true;
}

uint64_t File::count(std::string_view key) const {
  const Value* found = value(key);
  return found && found->type == ValueType::array ? found->count : 0;
}

}  // namespace tersor::model::gguf
