#include "base/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/safetensors_header.h"
#include "base/sniff.h"

namespace tersor::safetensors {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // of the format's own reader

Tensor place_tensor(Entry& entry, std::span<const std::byte> data, const std::string& place) {
  const std::string what = place + ": tensor " + in_quotes(entry.name);
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size())
    throw Error(what + " lies at bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of the data, which has " +
                std::to_string(data.size()) + "; the file is damaged or an incomplete download, fetch it again");
  uint64_t size = element_size(entry.dtype);
  for (const uint64_t dim : entry.shape) {
    if (dim > INT32_MAX || (dim && size > UINT64_MAX / dim)) throw Error(what + " has an impossible shape " + shape_text(entry.shape));
    size *= dim;
  }
  if (element_size(entry.dtype) && size != end - begin)
    throw Error(what + " of shape " + shape_text(entry.shape) + " and type " + entry.dtype + " needs " + std::to_string(size) +
                " bytes, but has " + std::to_string(end - begin) + "; the file is damaged");
  return {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), data.subspan(begin, end - begin)};
}

}  // namespace

uint64_t element_size(const std::string& dtype) {
  static const std::map<std::string, uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8},     {"F64", 8}, {"C64", 8},
  };
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

File::File(const std::filesystem::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  const std::string place = path.string();
  uint64_t header = 0;
  if (bytes.size() >= 8) std::memcpy(&header, bytes.data(), sizeof header);
  if (bytes.size() < 10 || bytes[8] != std::byte{'{'})
    throw Error(place + ": is not a safetensors file: it looks like " + describe_content(bytes));
  if (header > kMaxHeader || header > bytes.size() - 8)
    throw Error(place + ": the header should have " + std::to_string(header) + " bytes, but the file has " + std::to_string(bytes.size()) +
                "; it is damaged or an incomplete download, fetch it again");
  auto [entries, metadata] = parse_header({reinterpret_cast<const char*>(bytes.data()) + 8, header}, place);
  metadata_ = std::move(metadata);
  for (auto& entry : entries) tensors_.push_back(place_tensor(entry, bytes.subspan(8 + header), place));
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.data.data() < b.data.data(); });
  for (size_t i = 1; i < tensors_.size(); ++i)
    if (tensors_[i - 1].data.data() + tensors_[i - 1].data.size() > tensors_[i].data.data())
      throw Error(place + ": tensors " + in_quotes(tensors_[i - 1].name) + " and " + in_quotes(tensors_[i].name) +
                  " overlap; the file is damaged");
  const std::byte* end = bytes.data() + 8 + header;
  for (const Tensor& tensor : tensors_) end = std::max(end, tensor.data.data() + tensor.data.size());
  if (end != bytes.data() + bytes.size())
    throw Error(place + ": " + std::to_string(bytes.data() + bytes.size() - end) + " bytes follow the last tensor; the file is damaged");
}

const Tensor* File::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

void write(const std::filesystem::path& path, std::span<const Tensor> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensor data starts aligned
  write_atomically(path, [&](const std::filesystem::path& target) {
    std::ofstream file(target, std::ios::binary | std::ios::trunc);
    const uint64_t size = text.size();
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const Tensor& tensor : tensors)
      file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
    file.close();
    if (!file) throw Error(path.string() + ": cannot be written (disk full, or no permission?)");
  });
}

}  // namespace tersor::safetensors
