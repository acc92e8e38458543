// The commands of the program: each file adds its own to the parser, with the function that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace tersor::cli {

/// A parsed command and what it does; run() returns the exit status.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
using Commands = std::vector<Command>;

void add_generate(CLI::App& parent, Commands& commands);
void add_chat(CLI::App& parent, Commands& commands);
void add_eval(CLI::App& parent, Commands& commands);
void add_bench(CLI::App& parent, Commands& commands);
void add_calibrate(CLI::App& parent, Commands& commands);
void add_codec(CLI::App& parent, Commands& commands);
void add_codec_roundtrip(CLI::App& parent, Commands& commands);
void add_logits(CLI::App& parent, Commands& commands);
void add_tokenize(CLI::App& parent, Commands& commands);
void add_detokenize(CLI::App& parent, Commands& commands);
void add_inspect(CLI::App& parent, Commands& commands);

}  // namespace tersor::cli
