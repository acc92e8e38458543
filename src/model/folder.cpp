#include "model/folder.h"

#include <set>

#include "base/sniff.h"
#include "model/hf_json.h"

namespace tersor::model::hf {
namespace {

constexpr uint64_t kMaxIndex = uint64_t{64} << 20;

// A name that stays inside the folder.
bool plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find_first_of("/\\") == std::string::npos && name.find('\0') == std::string::npos &&
         name[0] != '.';
}

}  // namespace

Shards::Shards(const std::filesystem::path& folder) {
  std::error_code code;
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single, code))
    open(single);
  else
    open_listed(folder, index);
}

void Shards::open_listed(const std::filesystem::path& folder, const std::filesystem::path& index) {
  std::error_code code;
  if (!std::filesystem::exists(index, code))
    throw Error(folder.string() +
                ": holds neither model.safetensors nor model.safetensors.index.json; the folder of a model must hold one of them");
  const Section json = Section::read(index, kMaxIndex);
  const auto map = json.section("weight_map");
  if (!map) json.fail_key("weight_map", "an object of tensor names and files");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->all().items()) {
    if (!file.is_string()) map->fail_key(tensor, "the name of a file");
    if (!plain_name(file.get<std::string>())) map->fail_key(tensor, "the plain name of a .safetensors file in the same folder");
    names.insert(file.get<std::string>());
  }
  if (names.empty()) json.fail_key("weight_map", "at least one file");
  for (const auto& name : names) open(folder / name);
  for (const auto& [tensor, file] : map->all().items())
    if (!tensors_.contains(tensor))
      json.fail("tensor " + in_quotes(tensor) + " is listed in " + printable(file.get<std::string>()) +
                ", but is not there; the download is incomplete");
}

void Shards::open(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<safetensors::File>(path));
  for (const auto& tensor : files_.back()->tensors())
    if (!tensors_.emplace(tensor.name, std::pair(&tensor, files_.back().get())).second)
      throw Error(path.string() + ": tensor " + in_quotes(tensor.name) + " is in another file of the folder too");
}

const safetensors::Tensor* Shards::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.first;
}

std::string Shards::place_of(const std::string& name) const { return tensors_.at(name).second->path().string(); }

uint64_t Shards::bytes() const {
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file->size();
  return sum;
}

}  // namespace tersor::model::hf
