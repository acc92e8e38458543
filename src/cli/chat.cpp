#include <mlx/memory.h>
#include <unistd.h>

#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/session.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  GenerationOptions generation;
  std::string system;
  bool json = false;
};

constexpr const char* kHelp =
    "/reset       start the conversation anew\n"
    "/stats       what the last reply took, and the cache\n"
    "/save FILE   save the conversation's cache\n"
    "/load FILE   go on from a saved one\n"
    "/quit        end (so does Ctrl-D); Ctrl-C stops a reply\n";

// One conversation and the commands that act on it.
class Chat {
 public:
  Chat(const Options& options, const cache::KvSpec& spec)
      : options_(options),
        model_(options.model.load()),
        spec_(spec),
        calibrations_(options.kv.calibrations(&model_.identity())),
        session_{make_cache(), {}, {}},
        interactive_(::isatty(STDIN_FILENO)) {
    calibrations_.note_unused();
    if (model_.chat_format() == text::ChatFormat::none) note("the model's chat format is not known here: what you type is used as it is");
  }

  int run() {
    if (interactive_) note("/help lists the commands");
    for (std::string line;;) {
      if (interactive_) print("> ");
      const LineReader::Result result = reader_.next(line);
      if (result == LineReader::Result::end) break;
      if (result == LineReader::Result::interrupted) {
        if (ends_conversation()) throw Interrupted{};
        clear_interrupt();
        print("\n");
        continue;
      }
      if (!handle(line)) return interrupt_pending() ? interrupt_status() : 0;
    }
    if (interactive_) print("\n");
    return 0;
  }

 private:
  // At a terminal Ctrl-C stops a reply alone.
  bool ends_conversation() const { return interrupt_pending() && (!interactive_ || termination_pending()); }

  // Typing errors do not end an interactive conversation; in a pipe nobody would see them. False: the conversation ends.
  bool handle(const std::string& line) {
    try {
      if (line.starts_with('/')) return command(line);
      if (!line.empty()) answer(line);
      if (ends_conversation()) return false;
      clear_interrupt();
    } catch (const Error& error) {
      if (!interactive_) throw;
      note(std::string("tersor: ") + error.what());
    }
    return true;
  }

  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space), argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit") return false;
    if (name == "/help")
      note(kHelp);
    else if (name == "/reset")
      reset();
    else if (name == "/stats")
      note(last_ ? generation_report(*last_, session_.cache, memory_) : "nothing said yet");
    else if (name == "/save" && !argument.empty())
      save(argument);
    else if (name == "/load" && !argument.empty())
      load(argument);
    else if (name == "/save" || name == "/load")
      throw Error(name + " needs a file name");
    else
      throw Error("unknown command \"" + name + "\": /help lists the commands");
    return true;
  }

  void answer(const std::string& line) {
    require_utf8(line, "the line");
    const bool fresh = session_.fresh();
    const auto ids = turn_ids(model_, model_.chat_format(), fresh ? options_.system : "", line, !fresh);
    Progress progress("prompt");
    model::GenerateOptions generate = options_.generation.make();
    generate.on_prefill = [&](int64_t done, int64_t total) {
      progress.update(done, total);
      if (done == total) progress.clear();
    };
    if (!options_.json) generate.on_text = [](std::string_view piece) { print(piece); };
    mlx::core::reset_peak_memory();
    last_ = reply(model_, session_, ids, std::move(generate));
    memory_ = memory_now();
    progress.clear();
    if (options_.json)
      print_json_line(turn_json());
    else
      print("\n");
    if (interrupt_pending()) end_interrupted(static_cast<int64_t>(last_->tokens.size()), "token");
  }

  Json turn_json() const {
    return {{"text", last_->text},
            {"prompt_tokens", last_->prompt_tokens},
            {"generated_tokens", last_->tokens.size()},
            {"prefill_tok_s", last_->prefill_tok_s()},
            {"decode_tok_s", last_->decode_tok_s()},
            {"stop_reason", last_->stop_reason},
            {"interrupted", last_->stop_reason == "interrupted"},
            {"kv", to_json(session_.cache)}};
  }

  void reset() {
    session_ = Session{make_cache(), {}, {}};
    last_.reset();
    note("a new conversation");
  }

  void save(const std::string& path) {
    check_session_target(path);
    save_session(session_, path, model_);
    note("saved " + std::to_string(session_.cache.tokens()) + " tokens to " + path);
  }

  void load(const std::string& path) {
    require_exists(path);
    session_ = load_session(path, model_, options_.model.policy(), calibrations_, options_.kv.given() ? &spec_ : nullptr,
                            options_.model.given_dtype());
    last_.reset();
    note("loaded " + std::to_string(session_.cache.tokens()) + " tokens from " + path);
  }

  cache::KvCache make_cache() const { return model_.make_cache(spec_, options_.model.full_dtype(), calibrations_.of(spec_)); }

  const Options& options_;
  model::Transformer model_;
  cache::KvSpec spec_;
  Calibrations calibrations_;
  Session session_;
  bool interactive_;
  LineReader reader_;
  std::optional<model::Generation> last_;
  Memory memory_;
};

int run(const Options& options) {
  options.model.check();
  options.generation.make();
  require_utf8(options.system, "--system");
  return Chat(options, options.kv.spec(cache::KvSpec::recommended())).run();
}

}  // namespace

void add_chat(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand("chat",
                                        "Talk to a model, one line a turn, on one cache that keeps growing. With a pipe as standard input "
                                        "each line is a turn, and the first that fails is the last; with --json each "
                                        "reply is one object on one line.");
  app->footer("Example: tersor chat --model SmolLM2.gguf --kv turboquant:4\n\nWhile it runs:\n" + std::string(kHelp));
  auto options = std::make_shared<Options>();
  options->model.add(*app);
  app->add_option("--system", options->system, "System message at the start")->type_name("TEXT");
  options->kv.add(*app, false, kv_name(cache::KvSpec::recommended()));
  options->kv.add_halves(*app);
  options->generation.add(*app);
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
