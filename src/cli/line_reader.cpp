#include "cli/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/interrupt.h"
#include "tersor/base.h"

namespace tersor::cli {

LineReader::Result LineReader::next(std::string& line) {
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return Result::line;
    }
    if (ended_) {
      line = std::move(pending_);
      pending_.clear();
      return line.empty() ? Result::end : Result::line;
    }
    char buffer[4096];
    const ssize_t got = interrupt_pending() ? 0 : ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (interrupt_pending()) {
      pending_.clear();
      return Result::interrupted;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(std::string("standard input: cannot be read: ") + std::strerror(errno));
    if (got == 0)
      ended_ = true;
    else
      pending_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace tersor::cli
