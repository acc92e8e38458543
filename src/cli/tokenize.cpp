#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  std::vector<std::string> ids;
  bool special = false, bos = false, json = false;
};

text::Tokenizer load_tokenizer(const ModelOptions& model) {
  Progress progress("loading " + model.path);
  model::ModelData data = model::load(model.path);
  return model::take_tokenizer(data);
}

int run_tokenize(const Options& options) {
  options.model.check();
  const std::string text = read_text("-");
  const text::Tokenizer tokenizer = load_tokenizer(options.model);
  std::vector<int32_t> ids = tokenizer.encode(text, options.special);
  if (options.bos && !tokenizer.data().bos) throw Error(options.model.path + ": the model has no beginning-of-text token; leave --bos out");
  if (options.bos) ids.insert(ids.begin(), *tokenizer.data().bos);
  if (options.json) {
    Json pieces = Json::array();
    for (const int32_t id : ids) pieces.push_back(tokenizer.token_bytes(id));
    print_json({{"ids", ids}, {"pieces", pieces}});
    return 0;
  }
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  print(line + "\n");
  return 0;
}

int run_detokenize(const Options& options) {
  options.model.check();
  std::string words;
  for (const auto& word : options.ids) words += word + " ";
  const auto ids = options.ids.empty() ? parse_ids(read_text("-"), "standard input") : parse_ids(words, "the arguments");
  const text::Tokenizer tokenizer = load_tokenizer(options.model);
  require_in_vocabulary(ids, tokenizer.size());
  const std::string text = tokenizer.decode(ids, options.special);
  if (options.json)
    print_json({{"text", text}, {"ids", ids}});
  else
    print(text);
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "tokenize", "Print the token ids of the text on standard input, separated by spaces. Every byte counts, the last newline too.");
  app->footer("Example: printf 'Hello there' | tersor tokenize --model SmolLM2.gguf");
  auto options = std::make_shared<Options>();
  options->model.add(*app, false);
  app->add_flag("--special", options->special, "Special tokens written out in the text become their ids");
  app->add_flag("--bos", options->bos, "Put the beginning-of-text token first");
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run_tokenize(*options); }});
}

void add_detokenize(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "detokenize",
      "Print the text of token ids, given as arguments or on standard input. The bytes come out as they are, without a newline.");
  app->footer("Example: tersor detokenize --model SmolLM2.gguf 19556 665");
  auto options = std::make_shared<Options>();
  options->model.add(*app, false);
  app->add_option("ids", options->ids, "Token ids")->type_name("ID...");
  app->add_flag("--special", options->special, "Write special tokens out");
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run_detokenize(*options); }});
}

}  // namespace tersor::cli
