#include "model/gguf_reader.h"

#include <algorithm>

#include "base/sniff.h"
#include "model/gguf_types.h"

namespace tersor::model::gguf {
namespace {

constexpr uint64_t kMaxCount = 65536;  // keys or tensors; real files have a few thousand at most
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1, kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kMaxName = 65535;  // of the specification
constexpr int kMaxDepth = 4;          // arrays in arrays
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxDim = (uint64_t{1} << 31) - 1;  // MLX's shapes are int32
}  // namespace

uint64_t scalar_size(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64: return 8;
    case ValueType::string:
    case ValueType::array: return 0;
  }
  return 0;
}

void HeaderReader::fail(const std::string& text) const { throw Error(path_ + ": " + text); }

std::span<const std::byte> HeaderReader::take(uint64_t size, const char* what) {
  if (size > bytes_.size() - at_)
    fail("the file ends inside " + context_ + ": " + what + " at byte " + std::to_string(at_) + " needs " + std::to_string(size) +
         " bytes, the file has " + std::to_string(bytes_.size()) + "; it is damaged or an incomplete download, fetch it again");
  at_ += size;
  return bytes_.subspan(at_ - size, size);
}

std::string_view HeaderReader::string(const char* what) {
  const auto length = number<uint64_t>(what);
  const auto text = take(length, what);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

void HeaderReader::preamble() {
  const std::string_view start(reinterpret_cast<const char*>(bytes_.data()), std::min<size_t>(bytes_.size(), 4));
  if (start != "GGUF") fail("is not a GGUF file but looks like " + describe_content(bytes_));
  at_ = 4;
  version_ = number<uint32_t>("the version");
  if ((version_ & 0xffffu) == 0 && version_ != 0) fail("is a big-endian GGUF file, which is not supported; convert it to little-endian");
  if (version_ != 2 && version_ != 3)
    fail("has GGUF version " + std::to_string(version_) + "; versions 2 and 3 are supported: convert it again");
  tensors_ = number<uint64_t>("the tensor count");
  keys_ = number<uint64_t>("the metadata count");
  const uint64_t left = bytes_.size() - at_;
  if (tensors_ > kMaxCount || tensors_ > left / kMinTensorBytes || keys_ > kMaxCount || keys_ > left / kMinKeyBytes)
    fail("the header names " + std::to_string(tensors_) + " tensors and " + std::to_string(keys_) + " metadata keys, more than " +
         std::to_string(bytes_.size()) + " bytes can hold; the file is damaged or incomplete, fetch it again");
}

ValueType HeaderReader::value_type() {
  const auto type = number<uint32_t>("a value type");
  if (type >= kValueTypes) fail("unknown value type " + std::to_string(type) + " in " + context_ + " at byte " + std::to_string(at_ - 4));
  return static_cast<ValueType>(type);
}

void HeaderReader::skip_element(ValueType type, int depth) {
  if (type == ValueType::string)
    string("a string");
  else
    value(depth + 1);
}

// An array's own value has its header read here; elements that are arrays carry theirs.
Value HeaderReader::value(int depth) {
  const ValueType type = depth == 0 ? value_type() : ValueType::array;
  Value result;
  result.type = type;
  if (type == ValueType::string) {
    const auto text = string("a string");
    result.bytes = std::as_bytes(std::span(text.data(), text.size()));
  } else if (type == ValueType::array) {
    if (depth >= kMaxDepth) fail("arrays are nested more than " + std::to_string(kMaxDepth) + " deep in " + context_);
    result.element = value_type();
    result.count = number<uint64_t>("an array's count");
    const uint64_t start = at_, size = scalar_size(result.element);
    const uint64_t least = size ? size : result.element == ValueType::string ? 8 : 12;
    if (result.count > (bytes_.size() - at_) / least)
      fail("the array of " + context_ + " names " + std::to_string(result.count) + " elements at byte " + std::to_string(at_ - 8) +
           ", more than the file can hold; it is damaged or incomplete, fetch it again");
    if (size)
      take(result.count * size, "an array");
    else
      for (uint64_t i = 0; i < result.count; ++i) skip_element(result.element, depth);
    result.bytes = bytes_.subspan(start, at_ - start);
  } else {
    result.bytes = take(scalar_size(type), "a value");
    if (type == ValueType::boolean && result.bytes[0] > std::byte{1})
      fail(context_ + " is a boolean of value " + std::to_string(std::to_integer<int>(result.bytes[0])) + "; the file is damaged");
  }
  return result;
}

std::map<std::string_view, Value> HeaderReader::metadata() {
  std::map<std::string_view, Value> result;
  for (uint64_t i = 0; i < keys_; ++i) {
    context_ = "metadata key " + std::to_string(i + 1) + " of " + std::to_string(keys_);
    const auto key = string("the name");
    if (key.empty() || key.size() > kMaxName)
      fail(context_ + " has " + (key.empty() ? "an empty name" : "a name of " + std::to_string(key.size()) + " bytes"));
    context_ = "metadata key " + in_quotes(key);
    if (!result.emplace(key, value(0)).second) fail(context_ + " occurs twice; the file is damaged");
  }
  return result;
}

Tensor HeaderReader::tensor() {
  Tensor result;
  result.name = string("the name");
  if (result.name.empty() || result.name.size() > kMaxName)
    fail(context_ + " has " + (result.name.empty() ? "an empty name" : "a name that is too long"));
  context_ = "tensor " + in_quotes(result.name);
  const auto dims = number<uint32_t>("the number of dimensions");
  if (dims < 1 || dims > kMaxDims)
    fail(context_ + " has " + std::to_string(dims) + " dimensions; 1 to " + std::to_string(kMaxDims) + " are possible");
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = number<uint64_t>("a dimension");
    if (dim < 1 || dim > kMaxDim || elements > UINT64_MAX / 8 / dim)
      fail(context_ + " has a dimension of " + std::to_string(dim) + ", which is not possible; the file is damaged");
    elements *= dim;
    result.shape.insert(result.shape.begin(), dim);
  }
  result.type = number<uint32_t>("the type");
  result.offset = number<uint64_t>("the offset");
  return result;
}

std::vector<Tensor> HeaderReader::tensor_list() {
  std::vector<Tensor> result;
  for (uint64_t i = 0; i < tensors_; ++i) {
    context_ = "tensor " + std::to_string(i + 1) + " of " + std::to_string(tensors_);
    result.push_back(tensor());
  }
  return result;
}

void HeaderReader::place(Tensor& t, uint64_t start, uint64_t alignment) const {
  const uint64_t size = bytes_.size();
  const std::string what = "tensor " + in_quotes(t.name);
  if (start > size || t.offset > size - start)
    fail(what + " begins at byte " + std::to_string(t.offset) + " of the data section, past the end of the file (" + std::to_string(size) +
         " bytes); it is damaged or an incomplete download, fetch it again");
  if (t.offset % alignment) fail(what + " is not aligned: offset " + std::to_string(t.offset) + ", alignment " + std::to_string(alignment));
  t.offset += start;
  const TensorType* type = find_type(t.type);
  if (!type) return;
  if (t.shape.back() % type->block)
    fail(what + " has rows of " + std::to_string(t.shape.back()) + " elements, which blocks of " + type->name + " (" +
         std::to_string(type->block) + ") do not divide");
  uint64_t elements = 1;
  for (const uint64_t dim : t.shape) elements *= dim;
  const uint64_t blocks = elements / type->block;
  if (blocks > (size - t.offset) / type->bytes)
    fail(what + " needs " + std::to_string(blocks) + " blocks of " + std::to_string(type->bytes) + " bytes from byte " +
         std::to_string(t.offset) + ", but the file has " + std::to_string(size) +
         " bytes; it is damaged or an incomplete download, fetch it again");
  t.data = bytes_.subspan(t.offset, blocks * type->bytes);
}

void HeaderReader::place_tensors(std::vector<Tensor>& tensors, uint64_t alignment) const {
  const uint64_t start = (at_ + alignment - 1) / alignment * alignment;
  for (auto& t : tensors) place(t, start, alignment);
  std::vector<const Tensor*> order;
  for (const auto& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->offset + order[i - 1]->data.size() > order[i]->offset || order[i - 1]->offset == order[i]->offset)
      fail("tensors " + in_quotes(order[i - 1]->name) + " and " + in_quotes(order[i]->name) + " overlap at byte " +
           std::to_string(order[i]->offset) + "; the file is damaged");
}

}  // namespace tersor::model::gguf
