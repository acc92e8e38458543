// The parser as users meet it: help layout, and parse errors as one line with the nearest right spelling.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tersor::cli {

/// To be called before commands are added, which inherit it.
void set_help_layout(CLI::App& app);
/// One line for what the parser refused.
std::string explain(const CLI::App& app, const CLI::ParseError& error);
/// One line for a command line that stops short of a command.
std::string missing_command(const CLI::App& app);
/// The commands and their one-line purposes.
std::string short_help(const CLI::App& app);

}  // namespace tersor::cli
