#include "cli/usage.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tersor::cli {
namespace {

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// The known word that a typing error could have come from, or an empty string.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = word.size() / 3 + 2;
  for (const auto& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < least) least = distance, best = candidate;
  }
  return best;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The command that was named last: "tersor bench decode".
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.back());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::string unexpected(const CLI::App& command, const std::string& word) {
  const bool option = word.size() > 1 && word[0] == '-';
  const std::string name = option ? word.substr(0, word.find('=')) : word;
  const auto known = option ? option_names(command) : command_names(command);
  const std::string kind = option ? "unknown option " : known.empty() ? "unexpected argument " : "unknown command ";
  const std::string near = nearest(name, known);
  const std::string advice = !near.empty()             ? "did you mean " + near + "?"
                             : option || known.empty() ? "see " + full_name(command) + " --help"
                                                       : "use one of " + join(known);
  return kind + "\"" + name + "\" for " + full_name(command) + ": " + advice;
}

}  // namespace

void set_help_layout(CLI::App& app) {
  app.set_help_flag("-h,--help", "Print this help");
  app.get_formatter()->column_width(34);
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const auto extras = command.remaining();
  const auto bad = std::find_if(extras.begin(), extras.end(), [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  if (bad != extras.end()) return unexpected(command, *bad);
  if (!extras.empty()) return unexpected(command, extras.front());
  return std::string(error.what()) + " (see " + full_name(command) + " --help)";
}

std::string missing_command(const CLI::App& app) {
  const CLI::App& command = innermost(app);
  return full_name(command) + " needs a command: use one of " + join(command_names(command));
}

std::string short_help(const CLI::App& app) {
  std::string text = app.get_description() + "\n\nUsage: tersor COMMAND [OPTIONS]   (tersor COMMAND --help explains one)\n\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::string name = "  " + command->get_name();
    name.resize(std::max<size_t>(name.size() + 2, 15), ' ');
    const std::string purpose = command->get_description();
    text += name + purpose.substr(0, purpose.find('.')) + "\n";
  }
  return text;
}

}  // namespace tersor::cli
