// Runs the tokenizer for the Python parity tests.
//   text_driver TOKENIZER [CONFIG] MODE    TOKENIZER: tokenizer.json, or a file "*.gguf.json" with a GGUF's tokenizer fields
// MODE encode | special | decode | chat. Standard input holds records, each a 4-byte little-endian length and that many bytes:
// for encode and special a text, for decode ids separated by spaces, for chat a JSON object {"messages": [[role, content], ...],
// "continuation": bool}. One line is printed a record: ids separated by spaces, or (decode) the bytes in hexadecimal; "! message" for an
// Error.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tersor/base.h"
#include "tersor/text.h"

namespace {

using namespace tersor;
using nlohmann::json;

std::optional<int64_t> id_field(const json& fields, const char* key) {
  return fields.contains(key) ? std::optional(fields[key].get<int64_t>()) : std::nullopt;
}

text::TokenizerData load(const std::string& path, const std::string& config) {
  if (!path.ends_with(".gguf.json")) return text::parse_tokenizer_json(read_file(path), config.empty() ? "" : read_file(config), path);
  const json fields = json::parse(read_file(path));
  text::GgufTokenizer gguf{.model = fields.at("model"),
                           .pre = fields.at("pre"),
                           .tokens = fields.at("tokens"),
                           .merges = fields.at("merges"),
                           .token_type = fields.at("token_type"),
                           .bos_token_id = id_field(fields, "bos_token_id"),
                           .eos_token_id = id_field(fields, "eos_token_id"),
                           .eot_token_id = id_field(fields, "eot_token_id"),
                           .add_bos_token = fields.value("add_bos_token", false),
                           .chat_template = fields.value("chat_template", "")};
  return text::tokenizer_from_gguf(std::move(gguf), path);
}

std::optional<std::string> next_record() {
  unsigned char size[4];
  if (!std::cin.read(reinterpret_cast<char*>(size), 4)) return std::nullopt;
  std::string record(size[0] | size[1] << 8 | size[2] << 16 | static_cast<size_t>(size[3]) << 24, '\0');
  if (!std::cin.read(record.data(), static_cast<std::streamsize>(record.size())))
    throw Error("standard input: the last record is incomplete");
  return record;
}

std::string line_of(const std::vector<int32_t>& ids) {
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  return line;
}

std::string chat(const text::Tokenizer& tokenizer, const std::string& record) {
  const json request = json::parse(record);
  std::vector<text::Message> messages;
  for (const auto& message : request.at("messages")) messages.push_back({message.at(0), message.at(1)});
  const auto format = text::recognise_chat(tokenizer.data().chat_template);
  return line_of(text::apply_chat(tokenizer, format, messages, request.value("continuation", false)));
}

std::string decode(const text::Tokenizer& tokenizer, const std::string& record) {
  std::istringstream in(record);
  std::vector<int32_t> ids;
  for (int32_t id; in >> id;) ids.push_back(id);
  std::string line;
  for (const char byte : tokenizer.decode(ids, true)) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(byte));
    line += hex;
  }
  return line;
}

std::string answer(const text::Tokenizer& tokenizer, const std::string& mode, const std::string& record) {
  try {
    if (mode == "chat") return chat(tokenizer, record);
    if (mode == "decode") return decode(tokenizer, record);
    return line_of(tokenizer.encode(record, mode == "special"));
  } catch (const Error& error) { return "! " + std::string(error.what()); }
}

int run(int count, char** arguments) {
  if (count < 3 || count > 4) throw Error("usage: text_driver TOKENIZER [CONFIG] encode|special|decode|chat");
  const text::Tokenizer tokenizer(load(arguments[1], count == 4 ? arguments[2] : ""));
  const std::string mode = arguments[count - 1];
  std::chrono::duration<double> spent{};
  while (const auto record = next_record()) {
    const auto start = std::chrono::steady_clock::now();
    const std::string line = answer(tokenizer, mode, *record);
    spent += std::chrono::steady_clock::now() - start;
    std::cout << line << '\n';
  }
  std::cerr << "seconds " << spent.count() << '\n';
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
