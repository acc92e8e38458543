#include "base/safetensors_header.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/sniff.h"
#include "tersor/base.h"

namespace tersor::safetensors {
namespace {

using Json = nlohmann::json;

// Follows the parser through the three levels that a header has; anything else stops it with an Error.
class Handler : public nlohmann::json_sax<Json> {
 public:
  explicit Handler(const std::string& place) : place_(place) {}
  Header take() { return {std::move(entries_), std::move(texts_)}; }

  // MLX writes "__metadata__": null when there is none.
  bool null() override { return (depth_ == 1 && metadata_) || unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a number that is not whole"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || !list_) return unexpected("a number");
    if (list_->size() >= kMaxNumbers) fail("has a list that is too long");
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && metadata_) {
      texts_[key_] = value;
      return true;
    }
    if (depth_ != 2 || key_ != "dtype") return unexpected("a string");
    entries_.back().dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ >= 2 || (depth_ == 1 && key_.empty())) return unexpected("an object");
    ++depth_;
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (depth_ == 1) return begin_entry();
    if (metadata_) return true;
    const unsigned bit = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
    if (!bit) fail("has the unknown key " + in_quotes(key_));
    if (entries_.back().seen & bit) fail("has the key " + in_quotes(key_) + " twice");
    entries_.back().seen |= bit;
    return true;
  }

  bool end_object() override {
    if (--depth_ != 1 || metadata_) return true;
    if (entries_.back().seen != 7) fail("lacks dtype, shape or data_offsets");
    if (entries_.back().offsets.size() != 2) fail("needs two data_offsets");
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || metadata_ || key_ == "dtype") return unexpected("a list");
    list_ = key_ == "shape" ? &entries_.back().shape : &entries_.back().offsets;
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    throw Error(place_ + ": the header is not valid JSON at byte " + std::to_string(position) + "; the file is damaged, fetch it again");
  }

 private:
  static constexpr size_t kMaxNumbers = 16;

  bool begin_entry() {
    metadata_ = key_ == "__metadata__";
    if (key_.empty()) throw Error(place_ + ": a tensor has an empty name; the file is damaged");
    if (!names_.insert(key_).second) throw Error(place_ + ": tensor " + in_quotes(key_) + " occurs twice; the file is damaged");
    if (!metadata_) entries_.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }

  [[noreturn]] void fail(const std::string& text) const {
    const std::string what = metadata_ || entries_.empty() ? "the header" : "tensor " + in_quotes(entries_.back().name);
    throw Error(place_ + ": " + what + " " + text + "; the file is damaged or not safetensors");
  }
  bool unexpected(const char* what) const { fail(std::string("holds ") + what + " where none belongs"); }

  const std::string& place_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> texts_;
  std::set<std::string> names_;
  std::string key_;
  std::vector<uint64_t>* list_ = nullptr;
  int depth_ = 0;
  bool metadata_ = false;
};

}  // namespace

Header parse_header(std::string_view text, const std::string& place) {
  Handler handler(place);
  Json::sax_parse(text, &handler);
  return handler.take();
}

}  // namespace tersor::safetensors
