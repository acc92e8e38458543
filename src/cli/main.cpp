// The `tersor` command: parses, runs one command, and turns every failure into one line and an exit status.
#include <algorithm>
#include <csignal>
#include <new>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/usage.h"
#include "tersor/base.h"

namespace tersor::cli {
namespace {

constexpr int kDone = 0, kBadInput = 2;

int fail(std::string message) {
  for (char& c : message)
    if (c == '\n' || c == '\r') c = ' ';
  note("tersor: " + message);
  return kBadInput;
}

Commands add_commands(CLI::App& app) {
  Commands commands;
  add_generate(app, commands);
  add_chat(app, commands);
  add_eval(app, commands);
  add_bench(app, commands);
  add_calibrate(app, commands);
  add_codec(app, commands);
  add_logits(app, commands);
  add_tokenize(app, commands);
  add_detokenize(app, commands);
  add_inspect(app, commands);
  return commands;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Language models with compressed KV caches, measured.", "tersor");
  set_help_layout(app);
  bool version = false;
  app.add_flag("--version", version, "Print the versions of the program and of MLX");
  const Commands commands = add_commands(app);
  int threads = 0;
  for (const Command& command : commands)
    command.app
        ->add_option("--threads", threads,
                     "Threads to compute with (default: TERSOR_THREADS, or the CPUs that affinity and cgroup quota leave this process)")
        ->type_name("N")
        ->check(whole(1, 1024));
  app.footer(  // after the commands, which would inherit it
      "Environment:\n"
      "  TERSOR_THREADS   threads to compute with (default: the CPUs that affinity and cgroup quota leave this process)\n"
      "  TERSOR_SIMD      instruction set to compute with (default: the best that the processor has): AVX3_DL (AVX-512 with VNNI and "
      "VBMI),\n"
      "                   AVX3 or AVX512 (AVX-512), AVX2, SSE4, and on Arm NEON; `tersor inspect` lists those of this machine");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return kDone;
  } catch (const CLI::ParseError& error) { return fail(explain(app, error)); }
  if (version) {
    print(version_line() + "\n");
    return kDone;
  }
  for (const Command& command : commands)
    if (command.app->parsed()) {
      if (threads) setenv("TERSOR_THREADS", std::to_string(threads).c_str(), 1);
      check_environment();
      return command.run();
    }
  if (app.get_subcommands().empty()) print(short_help(app));
  return fail(missing_command(app));
}

int guarded(int argc, char** argv) {
  try {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of writing like others
    watch_interrupt();
    return parse_and_run(argc, argv);
  } catch (const ClosedPipe&) { return kDone; } catch (const Interrupted&) {
    // Nothing was made yet; who asked for a document gets one.
    if (std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; }))
      print_json({{"interrupted", true}});
    note("interrupted");
    return interrupt_status();
  } catch (const std::bad_alloc&) {
    return fail("out of memory: use a smaller model, a shorter text, or a cache of fewer bits");
  } catch (const std::exception& error) { return fail(error.what()); }
}

}  // namespace
}  // namespace tersor::cli

int main(int argc, char** argv) { return tersor::cli::guarded(argc, argv); }
