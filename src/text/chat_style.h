// The details in which templates of one chat format differ, read from their source.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tersor::text {

struct ChatStyle {
  bool bos = false;                           // the template writes bos first
  bool trim = false;                          // contents lose the white space around them
  std::optional<std::string> default_system;  // its own system line, for conversations without one
  bool default_system_unknown = false;        // it has one that must be computed (a date, for instance)

  bool drops_thinking = false;  // Qwen 3: earlier replies lose their <think> part

  // Llama 3.1 and later: a system block that is always there and starts with these lines.
  std::optional<std::string> system_lines;

  // Mistral.
  enum class System { refused, first_user, last_user, block };
  System system = System::refused;
  std::string open = "[INST] ", close = " [/INST]", reply_before, reply_after;
  bool trim_reply = false;
};

ChatStyle chat_style(std::string_view chat_template);

}  // namespace tersor::text
