#include "cache/file_header.h"

#include <charconv>

#include "base/digest.h"

namespace tersor::cache {
namespace {

constexpr const char* kDigest = "digest";

// Over everything but the entry that holds it.
std::string digest_of(const std::map<std::string, std::string>& header, std::span<const safetensors::Tensor> tensors) {
  Digest digest;
  for (const auto& [key, value] : header) {
    if (key == kDigest) continue;
    digest.add(key);
    digest.add(value);
  }
  for (const safetensors::Tensor& tensor : tensors) {
    digest.add(tensor.name);
    digest.add(tensor.data.data(), tensor.data.size());
  }
  return digest.str();
}

}  // namespace

FileHeader::FileHeader(const safetensors::File& file, const Kind& kind) : file_(file) {
  if (text("format") != kind.format) fail(kind.otherwise);
  if (text("version") != kind.version)
    fail("has format version " + text("version") + ", this program reads version " + std::string(kind.version) + "; make the file again");
}

void FileHeader::fail(const std::string& why) const { throw Error(file_.path().string() + ": " + why); }

std::string FileHeader::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  return found == file_.metadata().end() ? std::string() : found->second;
}

int64_t FileHeader::number(const std::string& key, int64_t low, int64_t high) const {
  const std::string value = text(key);
  int64_t n = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (value.empty() || code != std::errc() || end != value.data() + value.size() || n < low || n > high)
    fail("header entry \"" + key + "\" is \"" + value + "\" instead of a number from " + std::to_string(low) + " to " +
         std::to_string(high) + "; the file is damaged");
  return n;
}

Identity FileHeader::entries(const std::string& prefix) const {
  Identity result;
  for (const auto& [key, value] : file_.metadata())
    if (key.rfind(prefix, 0) == 0) result[key.substr(prefix.size())] = value;
  return result;
}

std::span<const std::byte> FileHeader::bytes_of(const std::string& name, const std::string& dtype, uint64_t bytes) const {
  const safetensors::Tensor* tensor = file_.find(name);
  if (!tensor) fail("tensor \"" + name + "\" is missing; the file is damaged");
  if (tensor->dtype != dtype || tensor->data.size() != bytes)
    fail("tensor \"" + name + "\" holds " + std::to_string(tensor->data.size()) + " bytes of " + tensor->dtype + ", expected " +
         std::to_string(bytes) + " of " + dtype + "; the file is damaged");
  return tensor->data;
}

void FileHeader::check_model(const Identity& model) const {
  for (const auto& [key, value] : model)
    if (const std::string theirs = text("model." + key); theirs != value)
      fail("belongs to another model: its " + key + " is \"" + theirs + "\", this model's is \"" + value +
           "\"; use it with the model it was made with");
}

void FileHeader::check_digest() const {
  if (text(kDigest) != digest_of(file_.metadata(), file_.tensors()))
    fail("its contents do not match its digest; the file is damaged, make it again");
}

void FileHeader::add_digest(std::map<std::string, std::string>& metadata, std::span<const safetensors::Tensor> tensors) {
  metadata[kDigest] = digest_of(metadata, tensors);
}

}  // namespace tersor::cache
